"""An ONNX file of ours: what it says of itself, its checksum, and whether it can be used; it may come from anybody."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from sofed_flwr.classifier.model_directory import LONGEST_CLASS, MOST_CLASSES
from sofed_flwr.classifier.onnx_limits import Graph, numbers_per_image, parsed, refuse_other_ports
from sofed_flwr.config.instantiate import first_error
from sofed_flwr.core.app_files import written_by
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.encoder import LARGEST_IMAGE
from sofed_flwr.storage.plain_files import read_plain_file

Layout = Literal["NHWC", "NCHW"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
BLANK = "0" * 32
"""Where the digest of a file will stand, while it is computed."""
LARGEST_FILE = 2**31 - 1
"""Bytes; protobuf has no larger ones."""
LARGEST_TEXT = 2**22
"""Characters of metadata."""

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_CLASS)]
Side = Annotated[int, Field(ge=1, le=LARGEST_IMAGE)]


class Metadata(BaseModel):
    """What our files say of themselves, each value as JSON; an encoder has no classes."""

    model_config = ConfigDict(strict=True, frozen=True)
    classes: Json[Annotated[list[Name], Field(max_length=MOST_CLASSES)]]
    layout: Json[Layout]
    image_size: Json[Annotated[list[Side], Field(min_length=2, max_length=2)]]
    precision: Json[Literal["fp32", "int8"]]
    digest: Json[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]]
    version: Json[str]

    @property
    def shape(self) -> list[int]:
        """Of one image."""
        return [*self.image_size, 3] if self.layout == "NHWC" else [3, *self.image_size]


@dataclass(frozen=True)
class OnnxFile:
    """A file that passed all checks; `numbers` is how many values one image needs on its way through the graph."""

    content: bytes
    metadata: Metadata
    numbers: int


def read_onnx(path: Path) -> OnnxFile:
    """A file of ours; anything else is a `DamagedFileError` that names it."""
    try:
        return checked(read_plain_file(path, LARGEST_FILE), str(path))
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path} is missing") from error


def serialised(model: Graph) -> OnnxFile:
    """What a reader would refuse is not written."""
    return checked(with_digest(model.SerializeToString(deterministic=True)), "the exported graph")


def with_digest(content: bytes) -> bytes:
    """The file with a digest of itself in its last metadata: ONNX has no checksum, and a damaged byte would pass."""
    before, _, after = content.rpartition(BLANK.encode())
    return b"".join([before, _digest(content).encode(), after])


def checked(content: bytes, name: str) -> OnnxFile:
    """The same for bytes in memory."""
    written = ""
    try:
        model = parsed(content)
        texts = {entry.key: entry.value for entry in model.metadata_props}
        if "version" in texts:
            written = written_by(texts["version"].strip('"'))
        metadata = _metadata(texts)
        before, _, after = content.rpartition(metadata.digest.encode())
        if metadata.digest != _digest(b"".join([before, BLANK.encode(), after])):
            raise ConfigError("its checksum does not match")
        refuse_other_ports(model.graph, metadata.shape, len(metadata.classes))
        return OnnxFile(content, metadata, numbers_per_image(model))
    except ConfigError as error:
        raise DamagedFileError(f"{name} is not an ONNX file of sofed, or a damaged one ({error}){written}") from error


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=len(BLANK) // 2).hexdigest()


def _metadata(texts: dict[str, str]) -> Metadata:
    if sum(map(len, texts.values())) > LARGEST_TEXT:
        raise ConfigError(f"its metadata has more than {LARGEST_TEXT} characters")
    try:
        metadata = Metadata.model_validate(texts)
    except ValidationError as error:
        raise ConfigError(f"in its metadata {first_error(error)}") from error
    if len(set(metadata.classes)) < len(metadata.classes):
        raise ConfigError("classes: a name is there twice")
    return metadata
