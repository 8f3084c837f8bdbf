#pragma once

// What a model worker and an attention worker have in their devices' memory, for tests, and what they put on
// a stream besides messages.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda/decode.h"
#include "cuda_fake_attention.hpp"
#include "cuda_streams.hpp"
#include "fhbn/cuda/mapped.hpp"

namespace cuda_workers_test {

using namespace cuda_streams_test;
using Buffer = lamina_cuda_channel_buffer;

inline constexpr int kLayers = 2, kBatch = 3, kHeads = 4, kKvHeads = 2, kDim = 32;
inline constexpr lamina_cuda_attention kAttention{LAMINA_CUDA_F32, kHeads, kKvHeads, kDim, 0.17f, 0, 0, 4};
inline constexpr std::size_t kQueries = kBatch * kHeads * kDim, kRows = kBatch * kKvHeads * kDim;

// Memory of the current device.
template <typename T>
class Array {
public:
  explicit Array(std::size_t count) : count_(count) {
    void* memory = nullptr;
    expect_success(cudaMalloc(&memory, count * sizeof(T)));
    memory_.reset(static_cast<T*>(memory));
    std::fill_n(data(), count, T{});
  }
  T* data() const { return memory_.get(); }
  Buffer buffer() const { return {data(), count_ * sizeof(T)}; }
  std::vector<T> values() const { return {data(), data() + count_}; }
  void draw(Random& random) const {
    std::normal_distribution<float> normal;
    std::generate_n(data(), count_, [&] { return normal(random); });
  }

private:
  std::size_t count_;
  std::unique_ptr<T, FreeDevice> memory_;
};

inline std::vector<Array<float>> arrays(int count, std::size_t size) {
  std::vector<Array<float>> all;
  for (int i = 0; i < count; ++i) all.emplace_back(size);
  return all;
}

// What attention makes of a layer's queries are the next layer's: what is wrong in one is in all that follow.
struct Model {
  void draw(Random& random) const {
    x[0].draw(random);
    for (int layer = 0; layer < kLayers; ++layer) {
      k[layer].draw(random);
      v[layer].draw(random);
    }
  }

  std::vector<Array<float>> x = arrays(kLayers + 1, kQueries);
  std::vector<Array<float>> k = arrays(kLayers, kRows), v = arrays(kLayers, kRows);
};

// The arena, and the lists of a batch: one request has tokens from before, one begins, and one place is
// empty.
class Attention {
public:
  Attention() {
    Random random(11);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), random);
    for (int layer = 0; layer < kLayers; ++layer) {
      k_[layer].draw(random);
      v_[layer].draw(random);
    }
  }

  // A token more for each request: the host writes the lists before the next iteration.
  void advance() {
    ++iteration_;
    std::int32_t at = 0;
    for (int request = 0; request < kBatch; ++request) {
      const int tokens = request == kBatch - 1 ? 0 : kBefore[request] + iteration_;
      for (int i = 0; i < tokens; ++i) slots_.data()[at++] = order_[request * kMostTokens + i];
      offsets_.data()[request + 1] = at;
    }
  }

  void plan(cudaStream_t stream) const {
    expect_ok(lamina_cuda_plan(&kAttention, &lists_, 0, 0, LAMINA_CUDA_PREVIOUS, &in_, stream));
  }
  void begin(int layer, cudaStream_t stream) const {
    const lamina_cuda_arena arena = arena_of(layer);
    expect_ok(lamina_cuda_begin(&kAttention, &arena, &lists_, q.data(), &in_, &partial_, stream));
  }
  void finish(int layer, cudaStream_t stream) const {
    const lamina_cuda_arena arena = arena_of(layer);
    expect_ok(lamina_cuda_finish(&kAttention, &arena, &lists_, q.data(), k.data(), v.data(), nullptr,
                                 &partial_, out.data(), stream));
  }

  // What lies in `out` beside the textbook's attention over what the lists name.
  void expect_textbook(int layer) const {
    for (int request = 0; request < kBatch; ++request) {
      for (int head = 0; head < kHeads; ++head) {
        const auto row = static_cast<std::size_t>((request * kHeads + head) * kDim);
        const std::vector<double> wanted = textbook(layer, request, head, q.data() + row);
        for (int i = 0; i < kDim; ++i) {
          expect(std::abs(out.data()[row + i] - wanted[i]) < 3e-5, "attention is not the textbook's");
        }
      }
    }
  }

  Array<float> q{kQueries}, k{kRows}, v{kRows}, out{kQueries};

private:
  static constexpr int kBefore[kBatch] = {40, 0, 0}, kMostTokens = 50;
  static constexpr int kSlot = kKvHeads * kDim + 16;

  static std::size_t workspace_bytes() {
    std::size_t bytes = 0;
    expect_ok(lamina_cuda_workspace_bytes(&kAttention, kBatch, &bytes));
    return bytes;
  }

  lamina_cuda_arena arena_of(int layer) const { return {k_[layer].data(), v_[layer].data(), kSlot, kDim}; }

  std::vector<double> textbook(int layer, int request, int head, const float* query) const {
    std::vector<double> sum(kDim, 0);
    double weights = 0;
    for (int at = offsets_.data()[request]; at < offsets_.data()[request + 1]; ++at) {
      const int row = slots_.data()[at] * kSlot + head / (kHeads / kKvHeads) * kDim;
      const float* const key = k_[layer].data() + row;
      double dot = 0;
      for (int i = 0; i < kDim; ++i) dot += double{key[i]} * double{query[i]};
      const double weight = std::exp(double{kAttention.scale} * dot);
      for (int i = 0; i < kDim; ++i) sum[i] += weight * double{v_[layer].data()[row + i]};
      weights += weight;
    }
    for (double& one : sum) one /= std::max(weights, 1e-300);
    return sum;
  }

  int iteration_ = 0;
  std::vector<std::int32_t> order_ = std::vector<std::int32_t>(kBatch * kMostTokens);
  std::vector<Array<float>> k_ = arrays(kLayers, kBatch * kMostTokens * kSlot);
  std::vector<Array<float>> v_ = arrays(kLayers, kBatch * kMostTokens * kSlot);
  Array<std::int32_t> offsets_{kBatch + 1}, slots_{kBatch * kMostTokens};
  Array<float> partial_out_{kQueries}, lse_{kBatch * kHeads};
  Array<char> workspace_{workspace_bytes()};
  lamina_cuda_lists lists_{offsets_.data(), slots_.data(), kBatch};
  lamina_cuda_partial partial_{partial_out_.data(), lse_.data()};
  lamina_cuda_workspace in_{workspace_.data(), workspace_bytes()};
};

}  // namespace cuda_workers_test
