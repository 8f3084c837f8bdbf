// Drives the attention worker at random beside the formula written down in double precision, for every
// instruction set of this processor. Meant for a sanitized build. Exits with 1 on a mismatch.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/worker.hpp"
#include "expect.hpp"

namespace {

using namespace lamina::attention;
using lamina::Slab;
using lamina::Slot;
using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

double half_to_double(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 != 0 ? -value : value;
}

double number_at(const Bytes& bytes, std::size_t i, DType dtype) {
  if (dtype == DType::kFloat32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes.data() + i * 2, 2);
  if (dtype == DType::kFloat16) return half_to_double(bits);
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

// Normal numbers of any dtype: for a half, of bits from the whole range of fractions and some exponents.
Bytes random_numbers(Random& random, std::size_t count, DType dtype) {
  Bytes bytes(count * bytes_of(dtype));
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat16) {
      const std::uint64_t r = random();
      const auto half =
          static_cast<std::uint16_t>((r & 0x83ff) | (r % 17 == 0 ? 0 : (12 + (r >> 20) % 4)) << 10);
      std::memcpy(bytes.data() + i * 2, &half, 2);
      continue;
    }
    const float x = normal(random);
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + i * 4, &x, 4);
    } else {
      std::memcpy(bytes.data() + i * 2, reinterpret_cast<const char*>(&x) + 2, 2);  // the upper half
    }
  }
  return bytes;
}

// One arena and batch, and what attention over it is.
struct Case {
  DType dtype;
  Shape shape;
  int window;
  float softcap;
  bool head_major;
  std::vector<std::int64_t> offsets{0};
  std::vector<Slot> slots;
  std::int64_t capacity;
  Bytes arena, q, k, v;

  std::size_t stride_of_v() const {
    return static_cast<std::size_t>(shape.head_dim) * (head_major ? 1 : shape.kv_heads);
  }
  LayerView view() {
    const std::int64_t dim = shape.head_dim;
    const std::int64_t slot_stride = (head_major ? 2 : 2 * shape.kv_heads) * dim;
    const std::int64_t head_stride = head_major ? capacity * 2 * dim : dim;
    return {arena.data(), arena.data() + stride_of_v() * bytes_of(dtype), capacity, slot_stride,
            head_stride,  1.0f / std::sqrt(static_cast<float>(dim)),      {window}, softcap};
  }
  std::size_t requests() const { return offsets.size() - 1; }
};

Case random_case(Random& random, DType dtype, Shape shape) {
  static constexpr int kLengths[] = {1, 2, 3, 4, 5, 63, 64, 65, 130, 1023, 1024, 1025, 1100};
  Case c{dtype, shape, 0, 0, random() % 4 == 0, {0}, {}, 1200, {}, {}, {}, {}};
  if (random() % 3 == 0) c.window = 1 + static_cast<int>(random() % 1100);
  if (random() % 3 == 0) c.softcap = 5;
  std::vector<Slot> order(static_cast<std::size_t>(c.capacity));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Slot>(i);
  for (int request = 0; request < 3; ++request) {
    std::shuffle(order.begin(), order.end(), random);  // requests may share slots
    const int length = kLengths[random() % std::size(kLengths)];
    c.slots.insert(c.slots.end(), order.begin(), order.begin() + length);
    // But a new token's slot is its request's alone.
    c.slots.back() = static_cast<Slot>(c.capacity + request);
    c.offsets.push_back(static_cast<std::int64_t>(c.slots.size()));
  }
  c.capacity += 3;
  const std::size_t row = static_cast<std::size_t>(shape.kv_heads) * static_cast<std::size_t>(shape.head_dim);
  c.arena = random_numbers(random, static_cast<std::size_t>(c.capacity) * 2 * row, dtype);
  c.q = random_numbers(random, 3 * row * static_cast<std::size_t>(shape.group()), dtype);
  c.k = random_numbers(random, 3 * row, dtype);
  c.v = random_numbers(random, 3 * row, dtype);
  return c;
}

// out [head_dim] and lse of one head, over the tokens that are in the arena now.
double reference(Case& c, std::size_t request, int head, std::vector<double>& out) {
  const LayerView view = c.view();
  const int dim = c.shape.head_dim;
  const std::int64_t end = c.offsets[request + 1];
  std::int64_t start = c.offsets[request];
  if (c.window != 0) start = std::max(start, end - c.window);
  std::vector<double> scores;
  std::vector<std::size_t> rows;
  const std::size_t q = (request * static_cast<std::size_t>(c.shape.heads) + static_cast<std::size_t>(head)) *
                        static_cast<std::size_t>(dim);
  for (std::int64_t t = start; t < end; ++t) {
    const auto row = static_cast<std::size_t>(c.slots[static_cast<std::size_t>(t)] * view.slot_stride +
                                              head / c.shape.group() * view.head_stride);
    double score = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
      score += number_at(c.q, q + d, c.dtype) * number_at(c.arena, row + d, c.dtype);
    }
    score *= view.scale;
    if (c.softcap != 0) score = c.softcap * std::tanh(score / c.softcap);
    scores.push_back(score);
    rows.push_back(row + c.stride_of_v());
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  out.assign(static_cast<std::size_t>(dim), 0);
  for (std::size_t t = 0; t < scores.size(); ++t) {
    const double weight = std::exp(scores[t] - max);
    sum += weight;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * number_at(c.arena, rows[t] + d, c.dtype);
  }
  for (double& x : out) x /= sum;
  return max + std::log(sum);
}

struct Answer {
  Bytes out;
  std::vector<float> partial, lse;
  bool operator==(const Answer&) const = default;
};

Answer answer(Case& c, Isa isa, int threads) {
  Worker worker(c.dtype, c.shape, threads, name_of(isa));
  const int layer = worker.add_layer(c.view());
  worker.plan(c.offsets, c.slots);
  Answer a{Bytes(c.q.size()), std::vector<float>(c.q.size() / bytes_of(c.dtype)),
           std::vector<float>(c.requests() * static_cast<std::size_t>(c.shape.heads))};
  worker.begin(layer, c.q.data());
  worker.finish(layer, c.k.data(), c.v.data(), a.out.data());
  worker.partial(layer, c.q.data(), a.partial.data(), a.lse.data());
  return a;
}

void check(Case& c, Isa isa) {
  const std::string name = name_of(isa) + ", dtype " + std::to_string(static_cast<int>(c.dtype)) +
                           ", heads " + std::to_string(c.shape.heads) + "/" +
                           std::to_string(c.shape.kv_heads) + ", dim " + std::to_string(c.shape.head_dim);
  const Answer one = answer(c, isa, 1);
  for (const int threads : {2, 3, 4}) {
    expect(answer(c, isa, threads) == one, name + ": another number of threads changes the result");
  }
  // Weights that are rounded to bfloat16 cost what an output that is rounded to it costs.
  const bool rounded = c.dtype == DType::kBFloat16 && isa == Isa::kAvx512Bf16 && c.shape.group() >= 8;
  const bool in_two = c.dtype == DType::kBFloat16 && isa == Isa::kAmxBf16;  // as two numbers of bfloat16
  const double out_tolerance = c.dtype == DType::kFloat32 ? 5e-6 : c.dtype == DType::kFloat16 ? 4e-3 : 2e-2;
  const auto dim = static_cast<std::size_t>(c.shape.head_dim);
  std::vector<double> wanted;
  for (std::size_t row = 0; row < one.lse.size(); ++row) {
    const auto heads = static_cast<std::size_t>(c.shape.heads);
    const double lse = reference(c, row / heads, static_cast<int>(row % heads), wanted);
    expect(std::abs(one.lse[row] - lse) < 5e-6, name + ": lse");
    for (std::size_t d = 0; d < dim; ++d) {
      expect(std::abs(one.partial[row * dim + d] - wanted[d]) < (rounded  ? 1e-2
                                                                 : in_two ? 1e-5
                                                                          : 5e-6),
             name + ": partial output");
      expect(std::abs(number_at(one.out, row * dim + d, c.dtype) - wanted[d]) < out_tolerance,
             name + ": output");
    }
  }
}

void empty_sets_and_mistakes() {
  std::vector<float> arena(8 * 2 * 8, 1.0f);
  std::vector<float> q(8, 1.0f);
  std::vector<float> out(8, 7.0f);
  auto bytes = [](std::vector<float>& x) { return reinterpret_cast<std::byte*>(x.data()); };
  Worker worker(DType::kFloat32, {1, 1, 8}, 2, "");
  const int layer = worker.add_layer({bytes(arena), bytes(arena) + 32, 8, 16, 8, 1.0f, {}, 0.0f});
  float lse = 7;
  const std::vector<std::int64_t> nothing{0, 0};
  worker.plan(nothing, {});
  worker.partial(layer, bytes(q), out.data(), &lse);
  expect(lse == -std::numeric_limits<float>::infinity() && out == std::vector<float>(8), "no tokens");
  combine({out.data(), &lse}, {out.data(), &lse}, {out.data(), &lse}, 1, 8);
  expect(lse == -std::numeric_limits<float>::infinity() && out == std::vector<float>(8), "no tokens twice");

  using Invalid = std::invalid_argument;
  expect_throws<Invalid>([&] { worker.begin(layer, bytes(q)); }, "a request without a token");
  expect_throws<WrongOrder>([&] { worker.finish(layer, bytes(q), bytes(q), bytes(out)); },
                            "finishing nothing");
  expect_throws<std::out_of_range>([&] { worker.begin(1, bytes(q)); }, "an unknown layer");
  const std::vector<std::int64_t> one{0, 1};
  const std::vector<Slot> outside{8};
  worker.plan(one, outside);
  expect_throws<std::out_of_range>([&] { worker.begin(layer, bytes(q)); }, "a slot outside the layer");
  expect_throws<std::out_of_range>([&] { worker.append(layer, bytes(q), bytes(q), outside); },
                                   "appending there");
  Slab slab(8);
  const std::vector<lamina::RequestId> ids{5};
  expect_throws<lamina::UnknownRequest>([&] { worker.plan(slab, ids); }, "an unknown request");
  slab.allocate(5, 2);
  worker.plan(slab, ids);
  slab.release(5);  // the plan has its own view
  worker.begin(layer, bytes(q));
  expect_throws<WrongOrder>([&] { worker.plan(slab, ids); }, "planning while a layer has begun");
  expect_throws<WrongOrder>([&] { worker.begin(layer, bytes(q)); }, "beginning twice");
  worker.finish(layer, bytes(q), bytes(q), bytes(out));
  expect(out == std::vector<float>(8, 1.0f), "an average of ones");
  expect_throws<Invalid>([] { Worker(DType::kFloat32, {3, 2, 8}, 1, ""); }, "heads that do not divide");
  expect_throws<Invalid>([] { Worker(DType::kFloat32, {1, 1, 12}, 1, ""); }, "head_dim 12");
  expect_throws<Invalid>([] { Worker(DType::kFloat32, {1, 1, 8}, 1, "avx1024"); },
                         "an unknown instruction set");
}

}  // namespace

int main() {
  Random random(20240611);
  empty_sets_and_mistakes();
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  constexpr Shape kShapes[] = {{1, 1, 8},   {4, 4, 64},  {8, 1, 128}, {14, 2, 80}, {2, 2, 96}, {6, 2, 112},
                               {11, 1, 24}, {4, 2, 256}, {32, 2, 40}, {3, 1, 128}, {12, 1, 64}};
  for (const Isa isa : available_isas()) {
    for (const DType dtype : kTypes) {
      for (const Shape shape : kShapes) {
        Case c = random_case(random, dtype, shape);
        check(c, isa);
      }
    }
  }
  std::string names;
  for (const Isa isa : available_isas()) names += ' ' + name_of(isa);
  std::printf("attention_stress: ok with%s\n", names.c_str());
}
