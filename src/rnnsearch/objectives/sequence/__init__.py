"""Objectives that train on translations which the model itself generates (`[objective.sequence]`).

`objective.py` has the base class, `hypotheses.py` generates translations and runs the model over them, `rewards.py`
scores them, and the other modules have one method or family of methods each.
"""

from __future__ import annotations

from rnnsearch.objectives.sequence import actor_critic as actor_critic  # these register their methods
from rnnsearch.objectives.sequence import beam_optimisation as beam_optimisation
from rnnsearch.objectives.sequence import greedy_actor as greedy_actor
from rnnsearch.objectives.sequence import policy_gradient as policy_gradient
from rnnsearch.objectives.sequence import read_write as read_write
from rnnsearch.objectives.sequence import reinforce as reinforce
from rnnsearch.objectives.sequence import scheduled_sampling as scheduled_sampling
