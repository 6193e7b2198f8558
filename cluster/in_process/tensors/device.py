"""Where the elements of a tensor are to lie, as a program says it."""

from __future__ import annotations

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError
from slipstream.cluster.in_process.interface.kinds import DLDeviceType, MemoryType

DeviceOrMemoryType = tuple[MemoryType, int] | MemoryType | tuple[DLDeviceType, int] | str

DL_DEVICES = {DLDeviceType.kDLCPU: MemoryType.CPU, DLDeviceType.kDLCUDA: MemoryType.GPU}


def device_of(device: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """`"cpu"`, `"gpu:1"`, a MemoryType, or one of them or of DLPack's devices with a number. Raises
    InvalidArgumentError."""
    match device:
        case str():
            return _of_text(device)
        case MemoryType():
            return device, 0
        case (MemoryType() as memory_type, int() as number):
            return memory_type, number
        case (DLDeviceType() as dl_device, int() as number) if dl_device in DL_DEVICES:
            return DL_DEVICES[dl_device], number
    raise InvalidArgumentError(f"Invalid memory type {device}")


def _of_text(text: str) -> tuple[MemoryType, int]:
    name, colon, number = text.partition(":")
    if name.upper() not in MemoryType.__members__:
        raise InvalidArgumentError(
            f"Unsupported Memory Type String. Can't convert {name.upper()} to Triton server memory type"
        )
    if colon and not number.isdecimal():
        raise InvalidArgumentError(f"Invalid memory type string {text}")
    return MemoryType[name.upper()], int(number or 0)
