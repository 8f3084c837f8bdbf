"""What a model's code may do between attention operators: in-place writes, other libraries' operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tiny_models import custom, decodes, tiny
from torch import Tensor, nn

from lamina.convert import ConversionError, aot, convert

Compute = Callable[[Tensor, Tensor], Tensor]


def _written_after_no_op(u: Tensor, x: Tensor) -> Tensor:
    y = u * 1.0
    y.add_(x)
    return u * y


def _two_equal_one_written(u: Tensor, _: Tensor) -> Tensor:
    a, b = torch.zeros_like(u), torch.zeros_like(u)
    a.add_(u)
    return a * 2 + b


def _equal_sums_one_written(u: Tensor, x: Tensor) -> Tensor:
    a, b = u + x, u + x
    a.mul_(2)
    return a - b


def _read_after_relu(u: Tensor, _: Tensor) -> Tensor:
    y = u + 1
    return y + nn.functional.relu(y, inplace=True)


def _written_after_a_cast(u: Tensor, x: Tensor) -> Tensor:
    y = u * 1.0
    other = y.double()
    y.clamp_(max=0.5)
    return y + x * other.float()


@pytest.mark.long(but=["_written_after_no_op", "_read_after_relu"])
@pytest.mark.parametrize(
    "compute",
    [
        *(_written_after_no_op, _two_equal_one_written, _equal_sums_one_written, _read_after_relu),
        _written_after_a_cast,
    ],
)
def test_in_place_writes_stay_with_their_tensor(compute: Compute) -> None:
    model = custom(compute)
    decodes(model)


def _into_out(u: Tensor, x: Tensor) -> Tensor:
    result = torch.empty_like(u)
    torch.add(u, x, out=result)
    return result


def _retained_view(u: Tensor, x: Tensor) -> Tensor:
    y = u.clone()
    view = y.view(-1)
    y.add_(x)
    return view.view(u.shape)


def _written_through_dropout(u: Tensor, x: Tensor) -> Tensor:
    y = u + x
    nn.functional.dropout(y, 0.1, training=False).add_(1.0)
    return y


def _of_another_type(u: Tensor, x: Tensor) -> Tensor:
    y = u.half() + 1
    y.add_(x)
    return y.float()


def _over_requests(u: Tensor, _: Tensor) -> Tensor:
    return u - u.mean(0, keepdim=True)


def _over_everything(u: Tensor, _: Tensor) -> Tensor:
    return u / u.sum()


@pytest.mark.long(but=["_retained_view-*", "_over_requests-*"])
@pytest.mark.parametrize(
    ("compute", "code"),
    [
        (_into_out, "convert-writes-in-place"),
        (_retained_view, "convert-writes-under-view"),
        (_written_through_dropout, "convert-writes-in-place"),
        (_of_another_type, "convert-writes-other-type"),
        (_over_requests, "convert-mixes-requests"),
        (_over_everything, "convert-mixes-requests"),
    ],
)
def test_unsupported_slice_options_are_refused(compute: Compute, code: str) -> None:
    with pytest.raises(ConversionError, match=code):
        convert(custom(compute))


def test_a_list_of_tensors_is_not_sizes() -> None:
    model = custom(lambda u, x: torch.cat([u, x]).view(2, *u.shape)[0] * 2)
    decodes(model)


def test_another_length_of_the_cache_is_refused() -> None:
    class Scaled(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
            output = super().forward(*args, past_key_values=past_key_values, **kwargs)
            output.logits = output.logits * self.factor(past_key_values.get_seq_length())
            return output

        def factor(self, length: int) -> float:
            raise NotImplementedError

    class Halved(Scaled):
        def factor(self, length: int) -> float:
            return length // 1024

    class Switched(Scaled):
        def factor(self, length: int) -> float:
            return 2.0 if length + 1 > 32 else 1.0

    for kind in (Halved, Switched):
        model = kind._from_config(tiny("Llama"), dtype=torch.float32)
        with pytest.raises(ConversionError, match="convert-depends-on-length"):
            convert(model)


@torch.library.custom_op("test_lamina_a::act", mutates_args=())
def _act_a(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("test_lamina_b::act", mutates_args=())
def _act_b(x: Tensor) -> Tensor:
    return x * -3


for _act in (_act_a, _act_b):
    _act.register_fake(torch.empty_like)


def test_operators_of_one_bare_name_are_two_classes() -> None:
    class Act(nn.Module):
        def __init__(self, odd: int) -> None:
            super().__init__()
            self.odd = odd

        def forward(self, x: Tensor) -> Tensor:
            return _act_b(x) if self.odd else _act_a(x)

    class Mixed(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for index, layer in enumerate(self.model.layers):
                layer.mlp.act_fn = Act(index % 2)

    config = tiny("Llama", num_hidden_layers=5)
    torch.manual_seed(0)
    model = Mixed._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    conversion = convert(model)
    assert [kind.members for kind in conversion.classes] == [(0,), (1, 3), (2,), (4,), (5,)]
    decodes(model, conversion)
    texts = [kind.code for kind in conversion.classes[1:3]]
    assert texts[0].text == texts[1].text
    keys = {aot._key(one.text, sorted(one.operators), torch.device("cpu")) for one in texts}
    assert len(keys) == 2
