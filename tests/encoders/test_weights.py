import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from nearkin.encoders import load_weights
from nearkin.errors import DataError


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


@pytest.fixture
def source():
    torch.manual_seed(3)
    net = network()
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(1, 2)
    return net


def assert_same(a, b, tolerance=0.0):
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, tensor in a.state_dict().items():
        torch.testing.assert_close(tensor, b.state_dict()[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "model.", "module.model.backbone."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_round_trip_under_any_prefix(source, tmp_path, prefix, suffix):
    path = tmp_path / f"net{suffix}"
    tensors = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    tensors[prefix + "fc.weight"] = torch.zeros(9, 4)
    if suffix == ".pth":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    target = network()
    report = load_weights(target, path)
    assert_same(source, target)
    assert sorted(report.loaded) == sorted(source.state_dict())
    assert report.missing == report.unexpected == report.mismatched == ()
    assert str(report) == f"net{suffix}: 7 tensors loaded"


@pytest.mark.parametrize("classifier", ["fc", "last_linear", "_fc", "classifier"])
def test_classifiers_are_dropped_and_the_rest_is_reported(source, tmp_path, classifier):
    path = tmp_path / "net.pth"
    torch.save({**source.state_dict(), f"{classifier}.bias": torch.zeros(9), "aux1.conv": torch.zeros(1)}, path)
    report = load_weights(network(), path)
    assert report.unexpected == ("aux1.conv",)
    assert str(report) == "net.pth: 7 tensors loaded; 1 unexpected (aux1.conv)"


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_state_dict_inside_a_training_script_s_wrapper(source, tmp_path, wrapper):
    path = tmp_path / "net.pth"
    torch.save({"epoch": 3, wrapper: source.state_dict()}, path)
    target = network()
    load_weights(target, path)
    assert_same(source, target)


def test_half_precision_becomes_the_network_s_own(source, tmp_path):
    path = tmp_path / "net.safetensors"
    halves = {name: t.half() if t.is_floating_point() else t for name, t in source.state_dict().items()}
    save_file(halves, path)
    target = network()
    load_weights(target, path)
    assert {t.dtype for t in target.parameters()} == {torch.float32}
    assert_same(source, target, tolerance=1e-3)


def test_batch_norm_with_a_leading_one_is_squeezed(source, tmp_path):
    path = tmp_path / "net.pth"
    old = {name: t[None] if name.startswith("1.") and t.ndim == 1 else t for name, t in source.state_dict().items()}
    assert old["1.weight"].shape == (1, 4)
    torch.save(old, path)
    target = network()
    load_weights(target, path)
    assert_same(source, target)


def test_missing_batch_norm_counters_are_forgiven(source, tmp_path):
    path = tmp_path / "net.pth"
    torch.save({name: t for name, t in source.state_dict().items() if "num_batches" not in name}, path)
    assert load_weights(network(), path).missing == ("1.num_batches_tracked",)


@pytest.mark.parametrize("lost", ["0.bias", "1.running_mean"])
def test_missing_tensor_fails_by_name_and_changes_nothing(source, tmp_path, lost):
    path = tmp_path / "net.pth"
    torch.save({name: t for name, t in source.state_dict().items() if name != lost}, path)
    target = network()
    before = {name: t.clone() for name, t in target.state_dict().items()}
    with pytest.raises(DataError, match=rf"do not fit Sequential: net.pth: 6 .*1 missing \({lost}\)"):
        load_weights(target, path)
    assert all(torch.equal(t, before[name]) for name, t in target.state_dict().items())


def test_wrong_shape_fails_with_both_shapes(source, tmp_path):
    path = tmp_path / "net.pth"
    torch.save({**source.state_dict(), "0.weight": torch.zeros(4, 1, 3, 3)}, path)
    with pytest.raises(DataError, match=r"0.weight: \[4, 1, 3, 3\] in the file, \[4, 3, 3, 3\] in the backbone"):
        load_weights(network(), path)


def test_another_network_s_file_names_only_a_few_tensors(source, tmp_path):
    path = tmp_path / "net.pth"
    torch.save({f"layer{i}": torch.zeros(1) for i in range(50)}, path)
    with pytest.raises(DataError, match=r"50 unexpected \(layer0, layer1, layer2, layer3, … 46 more\)"):
        load_weights(source, path)


class Attack:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return (open, (str(self.victim), "w"))


def save_plain_pickle(content, path):
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("save", [torch.save, save_plain_pickle])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, save):
    path, victim = tmp_path / "evil.pth", tmp_path / "victim"
    save({"0.weight": Attack(victim)}, path)
    with pytest.raises(DataError, match=r"evil.pth holds more than tensors.*never unpickled"):
        load_weights(network(), path)
    assert not victim.exists()


def test_a_whole_module_is_refused(tmp_path):
    torch.save(network(), tmp_path / "module.pth")
    with pytest.raises(DataError, match=r"state_dict alone"):
        load_weights(network(), tmp_path / "module.pth")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("net.h5", b"x", r"must end in .safetensors or one of .pth"),
        ("net.safetensors", b"garbage", "not a readable safetensors"),
        ("net.pth", b"garbage", "net.pth"),
        ("net.pth", b"", "net.pth"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_weights(network(), tmp_path / name)


def test_truncated_file(source, tmp_path):
    path = tmp_path / "net.pth"
    torch.save(source.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be read"):
        load_weights(network(), path)


def test_file_without_tensors(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "net.pth")
    with pytest.raises(DataError, match="holds no named tensors"):
        load_weights(network(), tmp_path / "net.pth")


def test_absent_file_says_what_to_give(tmp_path):
    with pytest.raises(DataError, match=r"does not exist: give a .safetensors or .pth file, or 'imagenet'"):
        load_weights(network(), tmp_path / "absent.pth")
