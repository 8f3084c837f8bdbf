#pragma once

// The path between a model worker and an attention worker, for tests, and what each puts on its stream.

#include <functional>
#include <thread>

#include "cuda_ways.hpp"
#include "cuda_workers.hpp"

namespace cuda_paths_test {

using namespace cuda_workers_test;
using cuda_ways_test::End, cuda_ways_test::Way;

inline constexpr int kModel = 0, kAttends = 1;  // devices

// A worker's two ends.
struct Ends {
  End& out;
  End& in;

  void abort() const {
    out.abort();
    in.abort();
  }
  void close() const {
    abort();
    out.close();
    in.close();
  }
  // The first failure of the two ends.
  lamina_cuda_status check() const {
    const lamina_cuda_status status = out.check();
    return status != LAMINA_CUDA_OK ? status : in.check();
  }
};

struct Path {
  explicit Path(bool over_nics, std::int64_t timeout_ns = kUnlimited)
      : there(over_nics, kModel, kAttends, timeout_ns), back(over_nics, kAttends, kModel, timeout_ns) {}
  Ends of_model() { return {*there.sender, *back.receiver}; }
  Ends of_attention() { return {*back.sender, *there.receiver}; }

  Way there, back;
};

inline void put_model(const Model& model, const Ends& ends, cudaStream_t stream) {
  for (int layer = 0; layer < kLayers; ++layer) {
    ends.out.send({model.x[layer].buffer()}, stream);
    ends.out.send({model.k[layer].buffer(), model.v[layer].buffer()}, stream);
    ends.in.receive({model.x[layer + 1].buffer()}, stream);
  }
}

inline void put_attention(const Attention& attention, const Ends& ends, cudaStream_t stream) {
  attention.plan(stream);
  for (int layer = 0; layer < kLayers; ++layer) {
    ends.in.receive({attention.q.buffer()}, stream);
    attention.begin(layer, stream);
    ends.in.receive({attention.k.buffer(), attention.v.buffer()}, stream);
    attention.finish(layer, stream);
    ends.out.send({attention.out.buffer()}, stream);
  }
}

inline std::thread on_device(int device, const std::function<void()>& work) {
  return std::thread([device, work] {
    expect_success(cudaSetDevice(device));
    work();
  });
}

}  // namespace cuda_paths_test
