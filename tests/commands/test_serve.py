"""Errors of `rnnsearch serve` at start-up. (`tests/serve` tests running servers.)"""

import socket


def test_invalid_model_folder_is_an_error(user_error, corpus):
    assert user_error("serve", corpus / "nowhere") == f"{corpus / 'nowhere'}: there is no such model folder"
    assert "is not a complete model folder: missing" in user_error("serve", corpus)


def test_models_with_the_same_name_are_an_error(user_error, one_vector):
    message = user_error("serve", one_vector, one_vector)
    assert message == f"models must have folders of different names; got {one_vector} and {one_vector}"


def test_used_port_is_an_error(user_error, one_vector):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        message = user_error("serve", one_vector, "--port", port)
    assert message == f"host and port must be free to listen on; got 127.0.0.1:{port}: Address already in use"


def test_unreadable_or_empty_api_key_file_is_an_error(user_error, one_vector, tmp_path):
    keys = tmp_path / "keys"
    assert user_error("serve", one_vector, "--api-keys", keys).startswith(
        f"{keys}: the file of API keys cannot be read"
    )
    keys.write_text("\n")
    assert (
        user_error("serve", one_vector, "--api-keys", keys)
        == f"{keys}: must contain API keys, one per line; got an empty file"
    )


def test_unwritable_suggestion_file_is_an_error(user_error, one_vector, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.serve.server.run", None)
    message = "must be a file that can be added to; got: "
    assert user_error("serve", one_vector, "--suggestions", tmp_path) == f"{tmp_path}: {message}Is a directory"
    path = tmp_path / "nowhere" / "kept"
    assert user_error("serve", one_vector, "--suggestions", path) == f"{path}: {message}No such file or directory"


def test_missing_device_is_an_error(user_error, one_vector, monkeypatch):
    monkeypatch.setattr("rnnsearch.serve.server.run", None)
    assert user_error("serve", one_vector, "--device", "foo") == 'device: must be auto, cpu, cuda or cuda:N; got "foo"'
    assert "device: must be a device of this machine" in user_error("serve", one_vector, "--device", "cuda:99")


def test_invalid_origin_is_an_error(user_error, one_vector):
    message = '--allow-origin: must be like https://example.org, or *; got "example.org/page"'
    assert user_error("serve", one_vector, "--allow-origin", "example.org/page") == message
