"""The configuration in a model's folder, with the defaults that need no look into the model."""

from __future__ import annotations

import errno

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.backends import complete_backend
from slipstream.router.model_repository.config.config_text import parse_json, parse_text
from slipstream.router.model_repository.config.defaults import set_defaults
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.sources.model_folder import ModelFolder
from slipstream.router.model_repository.version_policy import versions_in


def read_config(model: str, folder: ModelFolder, options: ReadOptions, config_json: str = "") -> ModelConfig:
    """`config_json` "": that of the folder, which may have none if the model may complete it. Raises
    ModelConfigError, OSError or UnicodeDecodeError."""
    config = parse_json(config_json) if config_json else _config_of(folder, options)
    config.name = config.name or model
    versions = versions_in(folder.subfolders())
    complete_backend(config, folder.files_of_first_version(versions))
    set_defaults(config)
    return config


def _config_of(folder: ModelFolder, options: ReadOptions) -> ModelConfig:
    path = folder.config_file(options.config_name)
    if options.auto_complete and not path.exists():
        return ModelConfig()
    if path.exists() and not path.is_file():  # reading a pipe would not end
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return parse_text(path.read_text(encoding="utf-8"))
