#pragma once

#include <cstdint>

#include "attention/cuda/attend.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/partition.hpp"

namespace lamina::attention::cuda {

// A checked lamina_cuda_attention: the kernels that do it.
class Problem {
public:
  // Throws Failure where the numbers make no sense. Asks no device.
  explicit Problem(const lamina_cuda_attention* attention);

  const lamina_cuda_attention& attention() const { return attention_; }
  const Kernels& kernels() const { return kernels_; }
  const AttendKernel& attend() const { return attend_; }
  std::int32_t group() const { return attention_.heads / attention_.kv_heads; }
  std::int32_t passes() const { return (group() + attend_.heads - 1) / attend_.heads; }
  std::int32_t row_bytes() const { return attention_.head_dim * kernels_.element_bytes; }
  bool latent() const { return attention_.latent != 0; }
  std::int32_t value_dim() const { return latent() ? attention_.latent : attention_.head_dim; }
  Scoring scoring() const { return Scoring::of(attention_.scale, attention_.soft_cap); }

  // Blocks of a pass: as many as the current device runs at once, or more smaller ones where others run
  // at the same time. Prepares the kernel on a device's first use.
  std::int32_t workers(std::int32_t batch) const;

  Workspace::Size size(std::int32_t batch) const;
  // The workspace's pieces, once it is known to be large enough.
  Workspace in(const lamina_cuda_workspace* workspace, std::int32_t batch) const;

private:
  lamina_cuda_attention attention_;
  Kernels kernels_;
  AttendKernel attend_;
};

// A checked arena: strides in bytes.
struct Arena {
  Arena(const lamina_cuda_arena* arena, const Problem& problem);
  char* k;
  char* v;  // the same as k for a latent KV
  std::int32_t slot_bytes;
  std::int64_t head_bytes;
};

void require_lists(const lamina_cuda_lists* lists);
void require_partial(const lamina_cuda_partial* partial);
void require_tensor(const void* tensor, const char* sentence);
// New rows of K, and of V where values are apart.
void require_rows(const Problem& problem, const void* k, const void* v);

}  // namespace lamina::attention::cuda
