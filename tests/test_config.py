"""Run files: presets, overrides and error messages."""

import tomllib

import pytest

from rnnsearch import config
from rnnsearch.config import TextConfig, merge, parse_setting, resolve
from rnnsearch.errors import ConfigError

DATA = {"source": "en", "target": "de", "corpus": "x"}
SMALL = {"preset": "small", "data": DATA}
TRAINING = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}


def problems(tables, *settings):
    with pytest.raises(ConfigError) as error:
        resolve(tables, settings)
    assert str(error.value) == "\n".join(error.value.problems)
    return error.value.problems


MULTIWAY = {
    "preset": "small",
    "data": {"source": ["de", "fr"], "target": "en", "train": ["x.tsv"]},
    "model": {"kind": "multiway"},
}


@pytest.mark.parametrize(
    ("setting", "message"),
    {
        'data.directions=["de-es"]': "data.directions: must be one of de-fr, de-en, fr-de, fr-en, en-de, en-fr",
        'data.directions=["de-en", "de-en"]': "data.directions: must be different from each other; got de-en twice",
        "data.directions=[]": "data.directions: must have at least one direction; got none",
        'training.batch.shuffle="once"': "training.batch.temperature: cannot be combined with",
        'model.tie="all"': 'model.tie: must be "none" or "target" for a multi-way model',
        "data.tag='<0x04>'": 'model.kind = "multiway": cannot be combined with data.tag; remove one',
        "data.tag='<2de>'": "data.tag: must be one of <0x04>, <0x05>",
        "search.candidates=10": 'model.kind = "multiway": cannot be combined with search.candidates; remove one',
        'data.source="unset"': "data.source: must be at least one language for a multi-way model; got none",
        'model.kind="translation"': "data.source: must be one language for a translation model without",
    }.items(),
)
def test_multiway_model_rejects_options_that_do_not_fit(problems, setting, message):
    found = problems(MULTIWAY, setting, "training.batch.temperature=2.0")
    assert any(problem.startswith(message) for problem in found), found


def test_decoder_of_all_languages_needs_a_joint_vocabulary(problems):
    settings = ['model.sharing.decoders="all"', 'model.sharing.encoders="all"', 'model.tie="target"']
    assert problems(MULTIWAY, *settings) == []
    message = 'model.sharing.decoders: "all" needs one vocabulary for all languages (text.joint = true)'
    assert problems(MULTIWAY, *settings, "text.joint=false") == [message]
    assert problems(MULTIWAY, *settings, 'model.tie="all"') == []


def test_directions_and_temperature_have_no_effect_on_other_models(problems):
    tables = {"preset": "small", "data": {"source": "de", "target": "en", "train": ["x.tsv"]}}
    settings = {
        "data.directions": '["en-de"]',
        "training.batch.temperature": "2.0",
        "training.direction_patience": "2",
        "training.save_directions": "true",
    }
    found = problems(tables, *(f"{option}={value}" for option, value in settings.items()))
    assert found == [f'{option}: has no effect with model.kind = "translation"; remove it' for option in settings]


def test_terms_of_the_likelihood_have_no_effect_without_it(problems):
    tables = {"preset": "mrt", "data": {"source": "de", "target": "en", "train": ["x.tsv"]}}
    terms = ("training.label_smoothing=0.1", "objective.doubly_stochastic=0.1")
    context = "has no effect with objective.sequence.likelihood = 0.0, which leaves the loss of the references out"
    assert problems(tables, *terms) == [
        f"objective.doubly_stochastic: {context}; remove it",
        f"training.label_smoothing: {context}; set it to 0.0",
    ]
    assert problems(tables, *terms, "objective.sequence.likelihood=0.1") == []
    assert problems({**tables, "preset": "mixer"}, *terms) == []
    assert problems({**tables, "preset": "scheduled-sampling"}, *terms) == []


def test_generated_translations_need_a_source_and_attention_without_noise(problems):
    tables = {"preset": "monotonic-small", "data": {"source": "de", "target": "en", "train": ["x.tsv", "|y.en"]}}
    null = 'data.target_only="null"'
    of_mrt = 'cannot be combined with objective.sequence.type = "mrt", which would translate empty sources; remove one'
    assert problems(tables, 'objective.sequence={type="mrt",likelihood=1.0}', null) == [
        'model.attention.normaliser: monotonic cannot be combined with objective.sequence.type = "mrt", whose '
        "translations have no noise in attention and thus no gradient; remove one",
        f'data.target_only: "null" {of_mrt}',
    ]
    assert problems(tables, 'objective.sequence={type="scheduled-sampling"}', null) == []


def test_agent_needs_a_model_that_does_not_read_ahead(problems):
    data = {"source": "de", "target": "en", "train": ["x.tsv"]}
    tables = {"preset": "read-write", "data": data, "training": {"begin_from": "runs/forward"}}
    assert problems(tables) == []
    needs = "objective.sequence.type: read-write needs"
    frozen = "has no effect with read-write, which does not train the translation model; remove it"
    settings = {
        "training.begin_from=unset": "training.begin_from: must be given for read-write, which does not train the "
        "translation model",
        'model.encoder.direction="both"': f"{needs} an encoder that reads forward: model.encoder.type = "
        '"unidirectional", or "stacked" with direction = "forward", and without reverse',
        "model.encoder.reverse=true": f"{needs} an encoder that reads forward: model.encoder.type = "
        '"unidirectional", or "stacked" with direction = "forward", and without reverse',
        'model.decoder.bridge="learned"': f"{needs} a decoder with attention that starts at zero: "
        'model.decoder.bridge = "zero", or type = "cohn"',
        'model.attention.features=["position"]': f"{needs} attention without features, which have values for words "
        "that have not been read",
        "objective.sequence.likelihood=0.1": f"objective.sequence.likelihood: {frozen}",
        'training.metric="nll"': 'training.metric: must be "reward" with objective.sequence.type = "read-write", which '
        'does not change the model; got "nll"',
    }
    for setting, problem in settings.items():
        assert problems(tables, setting) == [problem]
    assert problems({"preset": "small", "data": data}, 'training.metric="reward"') == [
        'training.metric: "reward" needs objective.sequence.type = "read-write"'
    ]
    assert problems(tables, "objective.sequence.target_proportion=1.5") != []


def test_embeddings_of_one_vocabulary_can_be_shared_with_given_tokenizers(problems):
    tables = {"preset": "small", "data": {"source": "de", "target": "en", "train": ["x.tsv"]}}
    tied = ['model.tie="all"', "text.joint=unset"]
    assert problems(tables, *tied) == [
        'model.tie: "all" needs one vocabulary for both languages: set text.joint = true'
    ]
    assert problems(tables, *tied, 'text.tokenizers="runs/other"') == []
    assert problems(tables, 'text.tokenizers="runs/other"', "text.vocabulary=500", "text.joint=true") == [
        'text: `joint`, `vocabulary` have no effect with `tokenizers`; remove them (or set them to "unset")'
    ]


def test_directions_are_a_list_or_all(problems):
    tables = {"preset": "multiway-small", "data": {"source": ["de", "fr"], "target": "en", "train": ["x.tsv"]}}
    must = 'data.directions: must be "all" or a list of directions such as "de-en"; got "some"'
    assert problems(tables, "data.directions=some") == [must]
    assert problems(tables, "data.directions=all") == []


def test_reward_function_must_be_a_name_in_a_module(problems):
    tables = {"preset": "mrt", "data": {"source": "de", "target": "en", "train": ["x.tsv"]}}
    reward = 'objective.sequence.reward={type="function",function="overlap"}'
    assert problems(tables, reward) == ['objective.sequence.reward.function: must be "module:name"; got "overlap"']


def test_all_problems_are_reported_with_their_paths():
    tables = {
        "preset": "small",
        "trainig": {},
        "data": {"source": "English", "target": "de", "corpus": "x", "dev_siz": 3},
        "text": {"type": "bpf", "vocabulary": 7},
        "model": {"embedding": "256", "encoder": {"sise": 2}, "attention": {"scor": "additive"}, "tie": "both"},
        "training": {
            "batch": {"tokens": 0},
            "clip_norm": -1,
            "label_smoothing": 1.0,
            "dev_bleu": "yes",
            "optimiser": 3,
            "max_minutes": float("nan"),
        },
        "search": {"beam": 5.0},
    }
    assert problems(tables) == [
        'data.source: must be a language code such as en, de or pt-BR; got "English"',
        'data.dev_siz: unknown option (did you mean "dev_size"?)',
        'text.type: must be one of words, bpe, unigram, characters; got "bpf" (did you mean "bpe"?)',
        "text.vocabulary: must be greater than or equal to 8; got 7",
        'model.embedding: must be a valid integer; got "256"',
        'model.encoder.sise: unknown option (did you mean "size"?)',
        'model.attention.scor: unknown option (did you mean "score"?)',
        'model.tie: must be one of none, target, all; got "both"',
        "training.batch.tokens: must be greater than or equal to 1; got 0",
        "training.optimiser: must be a table; got 3",
        "training.max_minutes: must be a finite number; got nan",
        "training.label_smoothing: must be less than 1; got 1.0",
        "training.clip_norm: must be greater than 0; got -1",
        'training.dev_bleu: must be a valid boolean; got "yes"',
        "search.beam: must be a valid integer; got 5.0",
        'trainig: unknown option (did you mean "training"?)',
    ]


def test_missing_options():
    assert problems({}) == ["data: must be given", "model: must be given", "training: must be given"]
    assert problems({"preset": "small"}) == ["data: must be given"]
    assert problems({"preset": "small", "data": {"source": "en", "target": "de"}}) == [
        "data: must have exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)"
    ]
    assert problems({**SMALL, "model": {"decoder": {"type": "cho", "size": 9}}}) == [
        "model.decoder.maxout: must be given for the cho decoder"
    ]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            "data={source='en', target='de', corpus='x', train=['a|b']}",
            "data: must have exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)",
        ),
        (
            "data.dev=a|b",
            "data: `dev` and `test` have no effect with `corpus`: a listed corpus has its own split",
        ),
        ("data.target=en", "data: source and target must be two languages; got en twice"),
        (
            "training.batch={tokens=1, sentences=1}",
            "training.batch: must have exactly one of `tokens` and `sentences`",
        ),
        ("training.batch={}", None),
        (
            "training={metric='bleu', dev_bleu=false}",
            'training: metric = "bleu" needs dev_bleu = true',
        ),
    ],
)
def test_contradictory_options_are_rejected(setting, problem):
    tables = {"data": DATA, "model": config.preset("small")["model"], "training": TRAINING}
    if problem is None:
        assert resolve(merge(tables, {"training": {"batch": {"tokens": 1}}}), [setting]).training.batch.tokens == 1
    else:
        assert problems(tables, setting) == [problem]


def test_training_needs_a_limit():
    tables = {"data": DATA, "model": config.preset("small")["model"], "training": {**TRAINING, "max_epochs": None}}
    assert problems(tables) == ["training: must have a limit: give max_epochs, max_updates, max_minutes or patience"]
    for stop in ("max_epochs", "max_updates", "max_minutes", "patience"):
        assert getattr(resolve(tables, [f"training.{stop}=3"]).training, stop) == 3


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.seed=2", {"training": {"seed": 2}}),
        ("training.seed = 2", {"training": {"seed": 2}}),
        ("a.b.c=1e-3", {"a": {"b": {"c": 1e-3}}}),
        ("name=run one", {"name": "run one"}),
        ('name="12"', {"name": "12"}),
        ("x=true", {"x": True}),
        ("x=True", {"x": "True"}),
        ("x=a=b", {"x": "a=b"}),
        ("x=", {"x": ""}),
        ("x=[1, 2]", {"x": [1, 2]}),
        ("x={y=1, z='w'}", {"x": {"y": 1, "z": "w"}}),
        ("data.train=['a.en|a.de']", {"data": {"train": ["a.en|a.de"]}}),
    ],
)
def test_parse_setting(setting, expected):
    assert parse_setting(setting) == expected


@pytest.mark.parametrize("setting", ["training.seed", "=2", ".seed=2", "training.=2", "a..b=1", ""])
def test_parse_setting_rejects_missing_key_or_value(setting):
    with pytest.raises(ConfigError) as error:
        parse_setting(setting)
    assert error.value.problems == [f'--set must be key=value, such as training.seed=2; got "{setting}"']


def test_settings_override_file_and_file_overrides_preset():
    tables = {**SMALL, "model": {"embedding": 100}, "training": {"seed": 5}}
    assert resolve(SMALL).model.embedding == 256
    assert resolve(tables).model.embedding == 100
    resolved = resolve(tables, ["model.embedding=90", "training.seed=6", "training.seed=7"])
    assert (resolved.model.embedding, resolved.training.seed) == (90, 7)
    assert resolved.model.encoder == resolve(SMALL).model.encoder


def test_changed_type_drops_the_presets_options_of_the_table():
    optimiser = resolve(SMALL, ["training.optimiser={type='sgd', learning_rate=1.0}"]).training.optimiser
    assert optimiser.model_dump(exclude_none=True) == {"type": "sgd", "learning_rate": 1.0, "momentum": 0.0}
    plateau = resolve(SMALL, ["training.schedule={type='plateau', patience=3}"]).training.schedule
    assert plateau.model_dump(exclude_none=True) == {"type": "plateau", "patience": 3, "factor": 0.5, "warmup": 200}
    assert resolve(SMALL, ["training.schedule.patience=3"]).training.schedule == plateau
    assert resolve(SMALL, ["text.type=words"]).text == TextConfig(type="words")


@pytest.mark.parametrize("order", [1, -1])
def test_order_of_settings_does_not_matter(order):
    settings = ["training.optimiser.type=sgd", "training.optimiser.momentum=0.9", "training.optimiser.learning_rate=1"]
    for tables in (SMALL, {**SMALL, "training": {"optimiser": {"type": "adam", "beta1": 0.8}}}):
        optimiser = resolve(tables, settings[::order]).training.optimiser
        assert optimiser.model_dump(exclude_none=True) == {"type": "sgd", "momentum": 0.9, "learning_rate": 1.0}


def test_exclusive_options_replace_each_other():
    assert resolve(SMALL).training.batch.tokens
    batch = resolve(SMALL, ["training.batch.sentences=80"]).training.batch
    assert (batch.tokens, batch.sentences) == (None, 80)
    papers = {"preset": "rnnsearch-30", "data": DATA}
    assert resolve(papers).training.batch.sentences == 80
    batch = resolve(papers, ["training.batch.tokens=900"]).training.batch
    assert (batch.tokens, batch.sentences, batch.sort_batches) == (900, None, 20)
    data = resolve(SMALL, ["data.train=['a.tsv']"]).data
    assert (data.corpus, data.train) == (None, ["a.tsv"])


def test_merge_does_not_change_its_arguments():
    base, over = {"a": {"b": 1, "type": "x"}, "c": 2}, {"a": {"type": "y"}, "d": {"e": 3}}
    assert merge(base, over) == {"a": {"type": "y"}, "c": 2, "d": {"e": 3}}
    assert base == {"a": {"b": 1, "type": "x"}, "c": 2}
    assert over == {"a": {"type": "y"}, "d": {"e": 3}}
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    assert merge({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


def test_unknown_preset():
    known = ", ".join(config.preset_names())
    assert problems({"preset": "smal"}) == [f'preset must be one of {known}; got "smal" (did you mean "small"?)']
    assert problems(SMALL, "preset=rnnsearch-3") == [
        f'preset must be one of {known}; got "rnnsearch-3" (did you mean "rnnsearch-30"?)'
    ]


def test_control_characters_are_escaped_in_messages():
    tables = SMALL | {"training": TRAINING | {"normalise": "tok\n]s\x1b[31m"}}
    assert problems(tables) == [r'training.normalise: must be one of sentences, tokens; got "tok\n]s\x1b[31m"']


def test_load_errors_name_the_file(tmp_path):
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=r"run\.toml: no such run file"):
        config.load(path)
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"run\.toml: cannot be read: 'utf-8' codec"):
        config.load(path)
    path.write_text("[data]\nsource = \n")
    with pytest.raises(ConfigError, match=r"run\.toml: is not TOML: Invalid value \(at line 2, column 10\)"):
        config.load(path)
    path.write_text('preset = "small"\n[data]\nsource = 1\ntarget = 2\ncorpus = "x"\n')
    with pytest.raises(ConfigError) as error:
        config.load(path)
    assert error.value.problems == [
        f"{path}: data.source: must be a valid string; got 1",
        f"{path}: data.target: must be a valid string; got 2",
    ]
    path.write_text('preset = "small"\n[data]\nsource = "en"\ntarget = "de"\ncorpus = "x"\n')
    loaded = config.load(path, ["training.seed=9"])
    assert (loaded.base, loaded.training.seed) == (tmp_path, 9)


def test_unknown_component_may_have_any_characters():
    with pytest.raises(ConfigError) as error:
        resolve({"preset": "small", "data": DATA}, ["training.optimiser.type=\udcff"])
    assert error.value.missing == ['optimiser "\\udcff"']
    assert error.value.problems[0].startswith("training.optimiser.type: must be one of ")


def test_summary_has_only_the_options_that_differ_from_the_preset():
    settings = [
        "text.vocabulary=500",
        "training.patience=unset",
        "training.optimiser={type='adadelta', rho=0.9, epsilon=1e-6}",
    ]
    lines = config.summary(resolve({"preset": "small", "data": DATA}, settings), "small").splitlines()
    assert lines[0] == 'preset = "small"'
    differing = {line.split(" = ")[0]: line.split(" = ")[1] for line in lines[1:] if " = " in line}
    assert {name for name in differing if not name.startswith("data.")} == {
        "text.vocabulary",
        "training.patience",
        *(f"training.optimiser.{name}" for name in ("type", "rho", "epsilon", "learning_rate")),
    }
    assert differing["training.patience"] == '"unset"'


def test_summary_is_a_run_file(tmp_path):
    run = resolve({"preset": "small", "data": DATA}, ["training.patience=unset", "search.beam=3"])
    path = tmp_path / "run.toml"
    path.write_text(config.summary(run, "small"))
    assert config.load(path) == resolve(
        {"preset": "small", "data": DATA}, ["training.patience=unset", "search.beam=3"], tmp_path
    )
    assert config.preset_of(path) == "small"
    assert config.preset_of(path, ["preset=demo"]) == "demo"
    assert config.summary(run, None) == config.dump(run).rstrip()


def test_dump_and_resolve_are_inverse():
    settings = ["name='ein \"Name\"'", "training.clip_norm=1", "training.optimiser.epsilon=1e-12"]
    before = resolve({**SMALL, "data": {**DATA, "target": "pt-BR"}}, settings)
    text = config.dump(before)
    assert "preset" not in text
    assert resolve(tomllib.loads(text)) == before
    assert before.training.optimiser.epsilon == 1e-12


def test_config_is_immutable():
    resolved = resolve(SMALL)
    with pytest.raises(ValueError, match="frozen"):
        resolved.model.embedding = 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[model]\nembedding = " + b"9" * 5000, "cannot be read"),
        (b"a = " + b"[" * 100_000, "must be nested less deeply"),
        (b"a." * 2000 + b"a = 1", "must be nested less deeply"),
        (b'["a\\"" . ' + b"'b' . " * 40 + b"a]", "must be nested less deeply"),
        (b"a = " + (b"{" + b"a." * 30 + b"a = ") * 90 + b"1" + b"}" * 90, "must be nested less deeply"),
        (b'a = "' + b"a." * 20 + b'a"', "a: unknown option"),
        (b"[model]\nembedding = 99999999999", "model.embedding: must be less than or equal to 16777216"),
        (b'[model.encoder]\ntype = "stacked"\nlayers = 1000000', "layers: must be less than or equal to 100"),
        (b'[model.decoder]\ncell = ""', "model.decoder"),
        (b"[search]\ncandidates = 101", "search.candidates: must be less than or equal to 100"),
        (b"[search]\nmax_ratio = 1e300", "search.max_ratio: must be less than or equal to 1000"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_malicious_run_files_are_rejected(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        config.load(path)
    assert message in str(error.value)


def test_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "run.toml"
    text = 'preset = "small"\n[data]\nsource = "en"\ntarget = "de"\ncorpus = "x"\n'
    path.write_text(text, encoding="utf-8-sig")
    assert config.load(path).data.target == "de"


def test_nul_in_path_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError):
        config.load(tmp_path / "a\0b.toml")
