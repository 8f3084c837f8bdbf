#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/device.cuh"
#include "operators/cuda/operators.h"

namespace lamina::operators::cuda {

using namespace lamina::cuda;
using attention::cuda::Bf16;
using attention::cuda::F16;
using attention::cuda::F32;

template <typename Element>
LAMINA_DEVICE float rounded(float value) {
  return Element::load(Element::store(value));
}

// What a thread moves at once.
template <typename Element>
struct alignas(16) Few {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(typename Element::Storage));
  typename Element::Storage at[kCount];
};

template <typename Element>
LAMINA_DEVICE const Few<Element>& few(const void* memory, std::int64_t number) {
  using Storage = typename Element::Storage;
  return *reinterpret_cast<const Few<Element>*>(static_cast<const Storage*>(memory) + number);
}

template <typename Element>
LAMINA_DEVICE Few<Element>& few(void* memory, std::int64_t number) {
  using Storage = typename Element::Storage;
  return *reinterpret_cast<Few<Element>*>(static_cast<Storage*>(memory) + number);
}

// Of a row, by how wide it is; and what each of them keeps of it.
constexpr int kNarrow = 32, kMiddling = 256, kWide = 1024;
constexpr int kNormThreads = 256;  // of a block, unless a row has more
constexpr int kRetained = 2;

struct NormArgs {
  lamina_cuda_norm_shape shape;
  const char* x;
  std::int64_t block_rows;
  std::int64_t block_stride;
  const void* added;
  void* sum;
  const void* weight;
  void* out;
  std::int64_t rows;
};

// Over the kLanes threads of a row.
template <int kLanes>
LAMINA_DEVICE float added_up(float value) {
  for (int mask = 1; mask < 32; mask *= 2) value += shuffle_xor(value, mask);
  if constexpr (kLanes > 32) {
    auto* const parts = reinterpret_cast<float*>(shared_memory());
    sync_block();  // all threads have read the previous sum's
    if (thread_index() % 32 == 0) parts[thread_index() / 32] = value;
    sync_block();
    value = 0;
    for (int part = 0; part < kLanes / 32; ++part) value += parts[part];
  }
  return value;
}

// A warp or a block does a row, which its threads read once and keep.
template <typename Element, int kLanes>
LAMINA_KERNEL(kLanes > kNormThreads ? kLanes : kNormThreads)
norm(const NormArgs args) {
  using Some = Few<Element>;
  constexpr int kRows = kLanes > kNormThreads ? 1 : kNormThreads / kLanes;  // of a block
  constexpr int kStep = kLanes * Some::kCount;
  const lamina_cuda_norm_shape shape = args.shape;
  const std::int64_t row = static_cast<std::int64_t>(block_x()) * kRows + thread_index() / kLanes;
  if (row >= args.rows) return;
  const std::int64_t dense = row * shape.width;
  const char* const x =
      args.x + row / args.block_rows * args.block_stride +
      row % args.block_rows * shape.width * static_cast<std::int64_t>(sizeof(typename Element::Storage));
  const int first = thread_index() % kLanes * Some::kCount;
  const auto width = static_cast<float>(shape.width);

  Some retained[kRetained];
  LAMINA_UNROLL
  for (int k = 0; k < kRetained; ++k) {
    if (first + k * kStep < shape.width)
      retained[k] = few<Element>(static_cast<const void*>(x), first + k * kStep);
  }
  if (args.added != nullptr) {
    LAMINA_UNROLL
    for (int k = 0; k < kRetained; ++k) {
      const int at = first + k * kStep;
      if (at >= shape.width) continue;
      const Some other = few<Element>(args.added, dense + at);
      LAMINA_UNROLL
      for (int i = 0; i < Some::kCount; ++i)
        retained[k].at[i] = Element::store(Element::load(retained[k].at[i]) + Element::load(other.at[i]));
      few<Element>(args.sum, dense + at) = retained[k];
    }
  }
  float mean = 0;
  if (shape.centred) {
    float sum = 0;
    LAMINA_UNROLL
    for (int k = 0; k < kRetained; ++k) {
      if (first + k * kStep >= shape.width) continue;
      LAMINA_UNROLL
      for (int i = 0; i < Some::kCount; ++i) sum += Element::load(retained[k].at[i]);
    }
    mean = added_up<kLanes>(sum) / width;
  }
  float squares = 0;
  LAMINA_UNROLL
  for (int k = 0; k < kRetained; ++k) {
    if (first + k * kStep >= shape.width) continue;
    LAMINA_UNROLL
    for (int i = 0; i < Some::kCount; ++i) {
      const float value = Element::load(retained[k].at[i]) - mean;
      squares += value * value;
    }
  }
  const float scale = 1.0f / ::sqrtf(added_up<kLanes>(squares) / width + shape.eps);
  LAMINA_UNROLL
  for (int k = 0; k < kRetained; ++k) {
    const int at = first + k * kStep;
    if (at >= shape.width) continue;
    Some weights, out;
    if (args.weight != nullptr && !shape.wide_weight) weights = few<Element>(args.weight, at);
    LAMINA_UNROLL
    for (int i = 0; i < Some::kCount; ++i) {
      float value = (Element::load(retained[k].at[i]) - mean) * scale;
      if (shape.rounds_first) value = rounded<Element>(value);
      if (args.weight != nullptr) {
        value *=
            shape.wide_weight ? static_cast<const float*>(args.weight)[at + i] : Element::load(weights.at[i]);
      }
      out.at[i] = Element::store(value);
    }
    few<Element>(args.out, dense + at) = out;
  }
}

constexpr int kRotaryThreads = 128;

struct RotaryArgs {
  lamina_cuda_rotary_shape shape;
  const char* x;
  std::int64_t head_stride;
  std::int64_t row_stride;
  const char* cos;
  const char* sin;
  std::int64_t table_stride;
  void* out;
  std::int64_t rows;
};

// A thread turns two numbers, or copies two.
template <typename Element>
LAMINA_KERNEL(kRotaryThreads)
rotate(const RotaryArgs args) {
  using Storage = typename Element::Storage;
  const lamina_cuda_rotary_shape shape = args.shape;
  const int twos = (shape.head_dim + 1) / 2, half = shape.rotated / 2;
  const std::int64_t number = static_cast<std::int64_t>(block_x()) * kRotaryThreads + thread_index();
  const std::int64_t head = number / twos;
  const std::int64_t row = head / shape.heads;
  if (row >= args.rows) return;
  const int two = static_cast<int>(number % twos);
  const auto* const x = reinterpret_cast<const Storage*>(args.x + row * args.row_stride +
                                                         head % shape.heads * args.head_stride);
  auto* const out = static_cast<Storage*>(args.out) + head * shape.head_dim;
  if (two >= half) {
    const int at = shape.rotated + 2 * (two - half);
    for (int i = at; i < at + 2 && i < shape.head_dim; ++i) out[i] = x[i];
    return;
  }
  const auto in_table = [&](const char* table, int at) {
    const char* const of_row = table + row * args.table_stride;
    return shape.wide_tables ? reinterpret_cast<const float*>(of_row)[at]
                             : Element::load(reinterpret_cast<const Storage*>(of_row)[at]);
  };
  const auto product = [&](float a, float b) { return shape.wide ? a * b : rounded<Element>(a * b); };
  const bool side_by_side = shape.pairs || shape.interleaved;
  const float low = Element::load(x[side_by_side ? 2 * two : two]);
  const float high = Element::load(x[side_by_side ? 2 * two + 1 : half + two]);
  const int first = shape.pairs ? 2 * two : two;
  const int second = shape.pairs ? 2 * two + 1 : half + two;
  const int second_table = shape.half_tables ? two : second;
  out[first] =
      Element::store(product(low, in_table(args.cos, first)) - product(high, in_table(args.sin, first)));
  out[second] = Element::store(product(high, in_table(args.cos, second_table)) +
                               product(low, in_table(args.sin, second_table)));
}

constexpr int kGateThreads = 256;

struct GateArgs {
  const char* gate;
  std::int64_t gate_stride;
  const char* up;
  std::int64_t up_stride;
  void* out;
  std::int64_t rows;
  std::int64_t width;
  std::int32_t activation;
};

// As torch computes them, in fp32.
LAMINA_DEVICE float activated(std::int32_t activation, float x) {
  switch (activation) {
    case LAMINA_CUDA_SILU:
      return x / (1.0f + ::expf(-x));
    case LAMINA_CUDA_GELU:
      return x * 0.5f * (1.0f + ::erff(x * 0.70710678f));
    case LAMINA_CUDA_GELU_TANH:
      return 0.5f * x * (1.0f + ::tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    default:
      return x < 0.0f ? 0.0f : x;
  }
}

template <typename Element>
LAMINA_KERNEL(kGateThreads)
gate(const GateArgs args) {
  using Some = Few<Element>;
  const std::int64_t of_row = args.width / Some::kCount;
  const std::int64_t number = static_cast<std::int64_t>(block_x()) * kGateThreads + thread_index();
  const std::int64_t row = number / of_row;
  if (row >= args.rows) return;
  const std::int64_t at = number % of_row * Some::kCount;
  const Some gates = few<Element>(static_cast<const void*>(args.gate + row * args.gate_stride), at);
  const Some ups = few<Element>(static_cast<const void*>(args.up + row * args.up_stride), at);
  Some out;
  LAMINA_UNROLL
  for (int i = 0; i < Some::kCount; ++i) {
    const float active = rounded<Element>(activated(args.activation, Element::load(gates.at[i])));
    out.at[i] = Element::store(active * Element::load(ups.at[i]));
  }
  few<Element>(args.out, row * args.width + at) = out;
}

}  // namespace lamina::operators::cuda
