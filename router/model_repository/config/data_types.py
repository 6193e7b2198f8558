"""KServe's names of the data types of a configuration."""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import DataType

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError
from slipstream.router.tensors.datatypes import BY_CONFIG_NAME


def datatype_of(data_type: int, field: str) -> str:
    """Raises ModelConfigError if the configuration has none at this field."""
    datatype = BY_CONFIG_NAME.get(DataType.Name(data_type))
    if datatype is None:
        raise ModelConfigError(ConfigFault(field, f"{field} must specify 'data_type'"))
    return datatype.name
