"""`rnnsearch serve`: what keeps it from starting. (`tests/serve` has it running.)"""

import socket
from collections.abc import Callable

Fault = Callable[..., str]


def test_a_folder_that_is_no_models(fault, corpus):
    assert fault("serve", corpus / "nowhere") == f"{corpus / 'nowhere'}: there is no such model folder"
    assert "is not a complete model folder: missing" in fault("serve", corpus)


def test_two_models_of_one_name(fault, one_vector):
    said = fault("serve", one_vector, one_vector)
    assert said == f"models must have folders of different names; got {one_vector} and {one_vector}"


def test_an_address_that_is_taken(fault, one_vector):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fault("serve", one_vector, "--port", port)
    assert said == f"host and port must be free to listen on; got 127.0.0.1:{port}: Address already in use"


def test_keys_that_cannot_be_read(fault, one_vector, tmp_path):
    keys = tmp_path / "keys"
    assert fault("serve", one_vector, "--api-keys", keys).startswith(f"{keys}: the file of API keys cannot be read")
    keys.write_text("\n")
    assert fault("serve", one_vector, "--api-keys", keys) == f"{keys}: must hold API keys, one a line; it is empty"


def test_suggestions_that_cannot_be_kept(fault, one_vector, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.serve.server.run", None)
    said = "must be a file that can be added to; got: "
    assert fault("serve", one_vector, "--suggestions", tmp_path) == f"{tmp_path}: {said}Is a directory"
    place = tmp_path / "nowhere" / "kept"
    assert fault("serve", one_vector, "--suggestions", place) == f"{place}: {said}No such file or directory"


def test_a_device_that_is_not_there(fault, one_vector, monkeypatch):
    monkeypatch.setattr("rnnsearch.serve.server.run", None)
    assert fault("serve", one_vector, "--device", "foo") == 'device: must be auto, cpu, cuda or cuda:N; got "foo"'
    assert "device: must be a device of this machine" in fault("serve", one_vector, "--device", "cuda:99")
