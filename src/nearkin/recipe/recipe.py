"""A recipe: a whole run as one frozen value, in typed sections with defaults.

Also the conversion of values to the types that fields declare, and the keys that decide a run: its hash, its default
folder and whether it may be resumed depend on these alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml

from nearkin.errors import RecipeError, did_you_mean


class Rule(NamedTuple):
    """The range of a key's values, in words and as a condition; it annotates the key's type."""

    words: str
    holds: Callable[[Any], bool]


def _at_least(least: float) -> Rule:
    return Rule(f"at least {least}", lambda value: value >= least)


Natural = Annotated[int, _at_least(0)]
Positive = Annotated[int, _at_least(1)]
Pixels = Annotated[int, _at_least(8)]
NonNegative = Annotated[float, _at_least(0)]
Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
Factor = Annotated[float, Rule("above 0 and at most 1", lambda value: 0 < value <= 1)]


def coerce(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``; ``where`` names the field in the error message.

    YAML reads ``1e-4`` as a string and a command line only gives strings, so numbers may be strings. A fraction is
    never rounded to an integer.

    >>> coerce("1e-4", float, "training.learning_rate")
    0.0001
    >>> coerce([0.16, 1], tuple[float, float], "data.crop_scale")
    (0.16, 1.0)
    >>> coerce(1.5, int, "training.epochs")
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: training.epochs must be a whole number, got 1.5
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        result = coerce(value, arguments[0], where)
        for rule in arguments[1:]:
            if not rule.holds(result):
                raise RecipeError(f"{where} must be {rule.words}, got {result}")
        return result
    if origin is Literal:
        if value in arguments:
            return value
        raise RecipeError(f"{where} must be one of {', '.join(map(str, arguments))}, got {value!r}")
    if origin in (Union, types.UnionType):
        return _coerce_union(value, arguments, where)
    if origin is tuple:
        return _coerce_tuple(value, arguments, where)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        if isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, float):
                    coerce(item, float, f"{where}.{key}")
            return dict(value)
        raise RecipeError(f"{where} must be a mapping of names to values, got {value!r}")
    return _coerce_scalar(value, kind, where)


def coerce_fields(values: Mapping[str, Any], section: type, where: str) -> dict[str, Any]:
    """``values`` in the types that the fields of ``section`` declare; an unknown key is an error."""
    types_of = get_type_hints(section, include_extras=True)
    for key in values:
        if key not in types_of:
            elsewhere = " or ".join(map(repr, keys_named(key)))
            hint = f"did you mean {elsewhere}?" if elsewhere else did_you_mean(str(key), types_of)
            raise RecipeError(f"unknown key '{where}.{key}': {hint}")
    return {key: coerce(value, types_of[key], f"{where}.{key}") for key, value in values.items()}


def _coerce_union(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems = []
    for option in arguments:
        if option is type(None):
            continue
        try:
            return coerce(value, option, where)
        except RecipeError as error:
            problems.append(str(error))
    raise RecipeError(problems[0])


def _coerce_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    of_any_length = len(arguments) == 2 and arguments[1] is Ellipsis
    if of_any_length and isinstance(value, (str, int, float)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise RecipeError(f"{where} must be a list, got {value!r}")
    if of_any_length:
        arguments = arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise RecipeError(f"{where} must be a list of {len(arguments)} values, got {value!r}")
    return tuple(coerce(item, kind, where) for item, kind in zip(value, arguments, strict=True))


def _coerce_scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool and not isinstance(value, bool):
        raise RecipeError(f"{where} must be true or false, got {value!r}")
    if kind in (int, float):
        return _coerce_number(value, kind, where)
    if kind is str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        raise RecipeError(f"{where} must be text, got {value!r}")
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise RecipeError(f"{where} cannot be set from a recipe")


def _coerce_number(value: Any, kind: type[int] | type[float], where: str) -> int | float:
    number: float | None = None
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(value)
    if number is None or isinstance(value, bool):
        raise RecipeError(f"{where} must be a number, got {value!r}")
    if kind is float and not math.isfinite(number):
        raise RecipeError(f"{where} must be a finite number, got {value!r}")
    if kind is int and not number.is_integer():
        raise RecipeError(f"{where} must be a whole number, got {value!r}")
    return kind(value) if isinstance(value, int) else kind(number)


@dataclass(frozen=True)
class DataSection:
    """Where the images come from and what is done to them."""

    source: str = "glyphs"
    """A benchmark's name, a folder with one folder per class, or a CSV/JSONL manifest."""
    root: str | None = None
    """Folder that holds the benchmarks; default: the environment variable NEARKIN_DATA."""
    class_folders: Literal["deepest", "top"] | None = None
    """Which folders are the classes where folders of images lie inside class folders; without it they are refused."""
    transform: str = "standard"
    """How crops are cut: standard, mild, ccp, profs, glyphs or digits."""
    image_size: Pixels | None = None
    """Side of the crops in pixels; default: the transform's."""
    crop_scale: tuple[float, float] | None = None
    """Smallest and largest share of the image that a training crop covers; default: the transform's."""
    random_erasing: Annotated[float, Rule("a probability from 0 to 1", lambda value: 0 <= value <= 1)] = 0.0
    """Probability that a box of a training crop, of 2 to 33 % of its area, is filled with the backbone's mean pixel."""
    cache: Literal["auto", "disk", "memory", "device"] = "auto"
    """Where decoded images are kept: on ``disk``, in ``memory`` only, or on disk and the GPU (``device``), which then
    makes the crops too. ``auto`` is ``device`` where there is ample room, else ``disk``."""
    shorter_side: Pixels = 256
    """Decoded images are stored with this shorter side, or a longer one where ``image_size`` or ``protocol.eval_size``
    need it; none is ever enlarged for that."""
    unreadable_tolerance: NonNegative = 0.01
    """A larger share of unreadable files stops the run before training."""
    workers: Natural | None = None
    """Threads that decode images and prepare batches; default: every core to decode, up to four for batches. For a GPU
    without the images on it these are processes; default: every core but one."""


@dataclass(frozen=True)
class EncoderSection:
    """Backbone, pooling, projection, normalisation."""

    backbone: str = "small"
    """A name that ``nearkin list backbones`` lists, or ``hf:<model>`` or ``timm:<model>``."""
    dim: Positive | None = 128
    """Dimension of the embeddings; null leaves out the projection, and they are the pooled features."""
    pooling: str = "avg"
    """How the feature map becomes one vector: avg, max, avg+max, gem, or gem3 with p fixed at 3."""
    normalisation: Literal["l2", "ball"] = "l2"
    """``l2``: onto the unit sphere; ``ball``: into the unit ball, where length counts too."""
    weights: str | None = None
    """A local .safetensors or .pth file, ``hub:OWNER/MODEL`` on the Hugging Face hub, or ``imagenet`` where the
    backbone brings its own."""
    freeze_batch_norm: bool = False
    """Batch-norm keeps the running statistics of its pretrained weights."""
    freeze_batch_norm_affine: bool = False
    """Batch-norm's scale and shift do not train; ``freeze_batch_norm`` is about its statistics."""
    head_init: Literal["default", "glorot", "pca"] = "default"
    """How the projection begins: Kaiming-normal by fan-out as in Proxy-Anchor, Glorot-uniform as in Keras, or ``pca``:
    the principal axes of the training images' features."""
    head_bias: bool = True
    """Whether the projection adds a bias."""
    channels_last: bool = False
    """Channels last in memory: the same numbers, faster on most machines."""
    last_stride: int | None = None
    """Stride of the last stage: 1 for a feature map twice as fine from the same weights, where it is 2 by default."""
    frozen_blocks: Natural = 0
    """The first blocks of a vision transformer that do not train; nothing of them is kept for the backward pass."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The backbone's own options."""


@dataclass(frozen=True)
class PartSection:
    """A part chosen by name, with that part's own options."""

    name: str
    """Which one: ``nearkin list losses`` and ``nearkin list methods`` show them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its options; in a recipe file they stand next to the name."""


@dataclass(frozen=True)
class TrainingSection:
    """The loop: batches, optimiser, schedule, precision, seeds."""

    epochs: Natural = 20
    """Passes over the training images."""
    max_steps: Positive | None = None
    """Ends the run after this many steps, whatever ``epochs`` says."""
    stop_at_epoch: NonNegative | None = None
    """Ends the run at this epoch, with the schedule of all ``epochs``; ``nearkin train --final`` sets it."""
    batch_size: Positive = 128
    """Images in one step, over all processes together."""
    micro_batch: Positive | None = None
    """Images in the network at a time: the step of the whole batch in the memory of this many images. It takes up to a
    third more time, and needs a network without batch-norm or ``encoder.freeze_batch_norm``. Default: the whole batch,
    on a CPU as many as keep about a gigabyte where that is the same training."""
    sampler: Literal["random", "balanced"] = "random"
    """``random``: any images; ``balanced``: ``images_per_class`` images of each of some classes."""
    images_per_class: Positive = 4
    """Images of one class in a balanced batch."""
    optimiser: Literal["adamw", "adam", "rmsprop", "sgd"] = "adamw"
    """The optimiser: ``adamw``, ``adam``, ``rmsprop`` or ``sgd``."""
    learning_rate: NonNegative = 1e-4
    """Learning rate of the backbone, and of what the loss learns other than proxies."""
    weight_decay: NonNegative = 1e-4
    """For all parameters; decoupled from the gradient with adamw, added to it with the others."""
    momentum: NonNegative = 0.9
    """For SGD and RMSprop."""
    beta2: Share = 0.999
    """Decay rate of the second moments of Adam and AdamW; RMSprop's is 0.99."""
    epsilon: NonNegative = 1e-8
    """Added to the root of the second moments: with the 0.01 of SoftTriple's and ProxyGML's code small gradients take
    small steps."""
    layer_decay: Factor = 1.0
    """Factor of the learning rate from each block of a vision transformer to the one before it, such as 0.65."""
    head_lr_multiplier: NonNegative = 1.0
    """Learning rate of the projection, as a multiple of ``learning_rate``."""
    proxy_lr_multiplier: NonNegative = 100.0
    """Learning rate of the proxies, as a multiple of ``learning_rate``."""
    schedule: Literal["constant", "step", "milestones", "plateau", "cosine"] = "step"
    """How the learning rates fall."""
    lr_decay_every: Positive = 10
    """Epochs between decays (step), or evaluations without improvement (plateau)."""
    lr_decay_factor: float = 0.5
    """Factor of the learning rates at a decay (step, milestones, plateau)."""
    min_learning_rate: NonNegative = 0.0
    """The learning rate does not fall below this (plateau, milestones); head and proxies in proportion."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate decays (milestones); one that is listed twice counts twice."""
    warmup_epochs: Natural = 0
    """Epochs at the start in which only head and proxies train."""
    ema_decay: Share | None = None
    """Evaluate and save an exponential moving average (EMA) of the encoder's weights with this decay, such as 0.995;
    training continues with the weights themselves."""
    l2_sp: NonNegative = 0.0
    """Weight in the loss of L2-SP: half the squared distance of the backbone from its pretrained weights."""
    max_grad_norm: NonNegative | None = None
    """Gradients are scaled down so that the norm of all of them together is at most this."""
    max_grad_value: NonNegative | None = None
    """Every single number of the gradients is cut to at most this, as Proxy-Anchor's code does (10)."""
    precision: Literal["auto", "float32", "tf32", "bf16", "fp16"] = "auto"
    """``auto`` is bf16 on a GPU that has it and float32 elsewhere. ``tf32`` is float32 whose products and convolutions
    use ten bits of each factor, on GPUs that can; ``float32`` uses all of them there too."""
    cuda_graphs: Literal["auto", "always", "never"] = "auto"
    """Whether the network's passes run as CUDA graphs, which launch faster and take more memory. ``auto``: where there
    is ample memory, and not for networks of other packages."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    seed: Natural = 0
    """Seed of the head, the proxies, the batches and their crops."""
    evaluate_every: Positive = 1
    """Epochs between evaluations."""
    evaluate_every_steps: Positive | None = None
    """Steps between evaluations; replaces ``evaluate_every``."""
    early_stop_patience: Positive | None = None
    """Ends the run after this many evaluations without a new best. Needs validation classes or
    ``protocol.monitor_test``."""
    evaluation_batch_size: Positive | None = None
    """Images embedded at a time; default: 256, on a CPU as many as have the pixels of 32 images of 224 × 224."""
    checkpoint_minutes: NonNegative = 5.0
    """A checkpoint is written at every evaluation, and at least this often."""
    track: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Libraries that get the recipe, losses and scores (extras of the same names), as their environment variables say.
    ``tensorboard`` and ``wandb`` write into the run's folder, ``mlflow`` into ``mlflow.db`` next to it, which the runs
    there share: ``mlflow ui --backend-store-uri sqlite:///runs/mlflow.db``."""


@dataclass(frozen=True)
class ProtocolSection:
    """How classes are split, what is measured and how the reported epoch is chosen."""

    name: Literal["conventional", "validation", "mlrc", "query-gallery", "in-distribution", "everything"] = (
        "conventional"
    )
    """Which classes train, which choose the epoch, and which are scored."""
    test_share: Share = 0.25
    """Share of the classes (``in-distribution``: of each class's images) kept for testing where the data set has no
    split of its own."""
    validation_share: Share = 0.15
    """Share of the training classes held out to choose the epoch (protocol ``validation``)."""
    folds: Annotated[int, _at_least(2)] = 4
    """Contiguous folds that the training classes are cut into (protocol ``mlrc``)."""
    fold: Natural = 0
    """The fold that is held out to choose the epoch, counted from 0."""
    train_share: Factor = 1.0
    """Share of the training images of each class that is used, at least one of each: small data."""
    holdout_share: Share | None = None
    """Share of the images of each training class with eight or more that is kept out of training, to score labels and
    learn confidences. Default: 0.1 with ``everything``, else none."""
    label_noise: Share = 0.0
    """Share of the training labels that is replaced by another training class."""
    split_seed: Natural = 0
    """Seed of every split that the data set does not bring, of ``train_share`` and of ``label_noise``."""
    validation_seed: Natural | None = None
    """Seed of the classes that the protocol ``validation`` holds out; default: ``split_seed``. In a study every seed
    above 0 holds out other classes, unless a number here fixes them."""
    select_by: str | None = None
    """Score that chooses the best evaluation; default: R@1, and MAP@R among evaluations within its standard error;
    MAP@R alone with ``mlrc``."""
    monitor_test: bool = False
    """Allows the schedule ``plateau``, ``training.early_stop_patience`` and CCP's patience to follow the scores of the
    test classes where these choose the epoch. Every table says so."""
    flip: bool = False
    """Scored embeddings are the mean of those of an image and of its mirror image, normalised. Every table says so."""
    eval_size: Pixels | None = None
    """Side of the crops that are scored, of images scaled in proportion; default: as in training, times ``eval_scale``.
    Every table says so."""
    eval_scale: Annotated[float, _at_least(0.25)] = 1.0
    """Side of the crops that are scored as a multiple of those of training, to the nearest eight pixels: 1.15 makes
    256 of 224. ``eval_size`` takes precedence. Every table says so."""
    recall_at: tuple[Positive, ...] = (1, 2, 4, 8)
    """Every k of R@k."""
    precision_at: tuple[Positive, ...] = ()
    """Every k of P@k."""
    map_at: tuple[Positive, ...] = ()
    """Every k of MAP@k."""
    ndcg_at: tuple[Positive, ...] = (8,)
    """Every k of nDCG@k."""
    covering: bool = False
    """Measure the covering radius and the distance between classes at every evaluation, not only at the end."""
    clustering: bool = False
    """Also report NMI and F1 at the end."""
    scores: tuple[str, ...] = ()
    """Further scores by name, such as MRR@10: any that ``nearkin list scores`` lists."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the scores that the keys above ask for.

        >>> ProtocolSection(recall_at=(1,), ndcg_at=(), clustering=True).measured
        ('R@1', 'P@R', 'MAP@R', 'NMI', 'F1')
        """
        names = [f"R@{k}" for k in self.recall_at] + ["P@R", "MAP@R"] + [f"P@{k}" for k in self.precision_at]
        names += [f"MAP@{k}" for k in self.map_at] + [f"nDCG@{k}" for k in self.ndcg_at]
        names += ["covering_radius", "inter_class_distance"] if self.covering else []
        names += ["NMI", "F1"] if self.clustering else []
        return tuple(dict.fromkeys([*names, *self.scores]))


@dataclass(frozen=True)
class Recipe:
    """A whole run. ``nearkin.load_recipe`` reads one from a file and checks it.

    >>> Recipe().objective.name, Recipe().training.epochs
    ('proxy_anchor', 20)
    """

    data: DataSection = field(default_factory=DataSection)
    encoder: EncoderSection = field(default_factory=EncoderSection)
    objective: PartSection = field(default_factory=lambda: PartSection("proxy_anchor"))
    method: PartSection = field(default_factory=lambda: PartSection("plain"))
    training: TrainingSection = field(default_factory=TrainingSection)
    protocol: ProtocolSection = field(default_factory=ProtocolSection)

    def as_mapping(self) -> dict[str, Any]:
        """Nested plain values, as saved in YAML."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("objective", "method"):
            plain[name] = _flatten_part(plain[name])
        return plain

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.as_mapping(), sort_keys=False, allow_unicode=True)

    def replace(self, **sections: Any) -> Recipe:
        return dataclasses.replace(self, **sections)

    def with_changes(self, changes: Mapping[str, Any]) -> Recipe:
        """The recipe with changed keys of its data, encoder, training or protocol.

        >>> Recipe().with_changes({"training.seed": 3, "encoder.dim": 64}).training.seed
        3
        """
        sections = {name: type(getattr(self, name)) for name in ("data", "encoder", "training", "protocol")}
        values: dict[str, dict[str, Any]] = {}
        for path, value in changes.items():
            name, _, key = path.partition(".")
            if name not in sections:
                raise RecipeError(f"unknown key {path!r}: it is not in {', '.join(sections)}")
            values.setdefault(name, {})[key] = value
        return self.replace(
            **{
                name: dataclasses.replace(getattr(self, name), **coerce_fields(keys, sections[name], name))
                for name, keys in values.items()
            }
        )


def _flatten_part(part: dict[str, Any]) -> dict[str, Any]:
    options = {
        key: _flatten_part(value) if isinstance(value, dict) and set(value) == {"name", "options"} else value
        for key, value in part["options"].items()
    }
    return {"name": part["name"], **options}


INDIFFERENT = (
    "training.device",
    "training.checkpoint_minutes",
    "training.track",
    "training.micro_batch",
    "training.cuda_graphs",
    "data.root",
    "data.workers",
    "data.cache",
)
"""Keys that may differ when a run is resumed: they change nothing that is computed, except rounding."""

LOCATIONS = ("data.source", "encoder.weights")
"""Keys that are locations. They may change when a run is resumed if the content is the same."""

LENGTH = ("training.epochs", "training.max_steps")
"""Keys of the length of a training, which may change when a run is resumed."""


def deciding(recipe: Recipe, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """The keys that decide a run and their values; ``besides`` leaves out further keys."""
    ignored = {*INDIFFERENT, *besides}
    return {key: value for key, value in flat(recipe.as_mapping()).items() if key not in ignored}


def fingerprint(recipe: Recipe, *, besides: Iterable[str] = ()) -> str:
    """A short hash of the keys that decide a run.

    >>> fingerprint(Recipe()) == fingerprint(Recipe().with_changes({"training.device": "cpu"}))
    True
    """
    return short_hash(deciding(recipe, besides=besides))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """The differences of two recipes given by :func:`deciding`, by key and in words.

    >>> differences({"training.seed": 0, "encoder.dim": 8}, {"training.seed": 1, "encoder.dim": 8})
    {'training.seed': 'training.seed was 0, is 1'}
    """
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    # A run without data.class_folders has no nested folders, and then every value of it means the same.
    changed = [key for key in changed if key != "data.class_folders" or None not in (before.get(key), now.get(key))]
    return {key: f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed}


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots.

    >>> flat({"training": {"seed": 0}, "encoder": {"options": {}}})
    {'training.seed': 0, 'encoder.options': {}}
    """
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def keys_named(name: str) -> list[str]:
    """The full keys of a recipe whose last part is ``name``.

    >>> keys_named("epochs"), keys_named("name")
    (['training.epochs'], ['objective.name', 'method.name', 'protocol.name'])
    """
    return [key for key in flat(Recipe().as_mapping()) if key.partition(".")[2] == name]


def short_hash(content: Any) -> str:
    """Eight hexadecimal digits for plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
