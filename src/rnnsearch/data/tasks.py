"""Tasks of a multi-way model in addition to translation: autoencoding and language modelling (Luong et al. 2016).

A task is a `Direction`: that of autoencoding reads a copy of its target, `en@copy`, as a separate stream, because
the copy may have a tag and another random segmentation; that of language modelling has no source. `training/run.py`
makes batches of the rows that `task_rows` returns. Tests: tests/data/test_mixed_batches.py,
tests/training/test_tasks.py.
"""

from __future__ import annotations

from rnnsearch.config.data import TasksConfig
from rnnsearch.data.batch import COPY_SUFFIX, Direction
from rnnsearch.data.id_store import ParallelIds


def task_ratios(tasks: TasksConfig | None) -> dict[Direction, float]:
    """Return the tasks of `[data.tasks]` with their mixing ratios, without those with a ratio of 0."""
    if tasks is None:
        return {}
    ratios = {}
    for language in tasks.autoencoded:
        ratios[Direction((f"{language}{COPY_SUFFIX}",), language)] = tasks.autoencoding[language]
    for language in tasks.modelled:
        ratios[Direction((), language)] = tasks.language_model[language]
    return ratios


def task_path(task: Direction) -> str:
    """Return the path of a task's option."""
    return f"data.tasks.{'autoencoding' if task.sources else 'language_model'}.{task.target}"


def task_rows(ids: ParallelIds, task: Direction, monolingual: bool) -> ParallelIds:
    """Return the rows of a corpus with the streams of a task.

    Args:
        ids: The corpus, with a stream per language.
        task: A task of `task_ratios`.
        monolingual: True for rows without other languages only.
    """
    present = ids.present(task.target)
    if monolingual:
        for name in ids.names:
            if name != task.target:
                present = present & ~ids.present(name)
    rows = ids
    for name in (*task.sources, task.target):
        rows = rows.with_stream(name, ids.stream(task.target), present)
    return rows.select([*task.sources, task.target])
