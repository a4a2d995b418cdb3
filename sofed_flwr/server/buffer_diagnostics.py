"""What the buffers of simulated devices hold, to explain why one policy learns more than another.

In a simulation the devices' states lie beside the server's, and so do the labels. So the server looks: no device and no
policy ever sees a label, and nothing is sent that a real device would not send. A fleet's devices keep their states to
themselves, and there is nothing to measure.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from torch import Tensor

from sofed_flwr.evaluation.diversity import effective_classes, vendi_score
from sofed_flwr.evaluation.known_images import KnownImages
from sofed_flwr.storage.buffer_state import HeldImages, read_buffer

MOST_DEVICES = 8
"""The first ones: a state holds a target network, too, and a hundred of those would take seconds to read."""

Encode = Callable[[Tensor], Tensor]


class BufferDiagnostics:
    """`homes` are the devices' state directories; `known` are the images they stream, None: there are no labels."""

    def __init__(self, homes: Sequence[Path], known: KnownImages | None) -> None:
        self._homes = homes[:MOST_DEVICES]
        self._known = known

    def measure(self, features: Encode) -> dict[str, float]:
        """Means over the devices; nothing before the first round, and nothing of a fleet."""
        held = [buffer for home in self._homes if home.is_dir() and (buffer := read_buffer(home)) is not None]
        each = [self._measure_one(buffer, features) for buffer in held if len(buffer.ages)]
        return {name: mean(values[name] for values in each) for name in (each[0] if each else {})}

    def _measure_one(self, held: HeldImages, features: Encode) -> dict[str, float]:
        ages = held.ages.double()
        values = {"buffer_age_median": float(ages.median()), "buffer_age_90": float(ages.quantile(0.9))}
        encoded = features(held.images)
        values["buffer_vendi"] = vendi_score(encoded) if encoded.isfinite().all() else 1.0
        if self._known is not None:
            classes = self._known.classes_of(held.images)
            values |= {
                "buffer_classes": effective_classes(classes),
                "buffer_classes_present": len(set(classes.tolist())),
            }
        return values
