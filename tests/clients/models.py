"""Models with every kind of field that clients turn into schemas."""

from __future__ import annotations

from datetime import date, datetime, time
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

from pydantic import UUID4, Base64Bytes, BaseModel, ConfigDict, Field, SecretStr


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0, le=150)]
    address: Address
    nickname: str | None = None


class Times(BaseModel):
    day: date
    moment: datetime
    clock: time


class Ids(BaseModel):
    any_id: UUID
    random_id: UUID4
    host: IPv4Address


class Texts(BaseModel):
    secret: SecretStr
    raw: bytes
    file: Path
    encoded: Base64Bytes
    model_config = ConfigDict(regex_engine="python-re")
    code: Annotated[str, Field(min_length=2, max_length=4, pattern=r"^(?!0)[0-9]+$")]


class Choices(BaseModel):
    size: Literal["s", "m", "l"]
    colour: Colour
    number: Literal[1, 2, 3]
    flag: bool


class Collections(BaseModel):
    colours: set[Colour]
    pair: tuple[int, Literal["a", "b"]]
    few: Annotated[list[Annotated[int, Field(ge=-5, le=5, multiple_of=5)]], Field(max_length=3)]
    marks: dict[Literal["art", "music"], Annotated[int, Field(ge=0, le=9)]]


class Numbers(BaseModel):
    wide: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
    unsigned: Annotated[int, Field(ge=0, le=2**64 - 1)]
    share: Annotated[float, Field(gt=0, lt=1)]
    huge: Annotated[float, Field(ge=-1e308, le=1e308)]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[Literal["sit", "roll"]], Field(max_length=2)]


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    other: Cat | Dog | None


class Tree(BaseModel):
    name: Literal["leaf", "branch"]
    children: Annotated[list[Tree], Field(max_length=1)]


ALL: tuple[type[BaseModel], ...] = (Person, Times, Ids, Texts, Choices, Collections, Numbers, Pet, Tree)
