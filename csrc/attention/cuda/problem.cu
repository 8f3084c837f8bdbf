#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "attention/cuda/latent.cuh"
#include "attention/cuda/problem.hpp"
#include "cuda/runtime.hpp"

namespace lamina::attention::cuda {

namespace {

Kernels kernels_for(std::int32_t dtype) {
  switch (dtype) {
    case LAMINA_CUDA_F32:
      return kernels_f32();
    case LAMINA_CUDA_F16:
      return kernels_f16();
    case LAMINA_CUDA_BF16:
      return kernels_bf16();
    default:
      throw Failure{LAMINA_CUDA_BAD_ARGUMENT, "dtype is neither fp32 nor fp16 nor bf16"};
  }
}

lamina_cuda_attention checked(const lamina_cuda_attention* given) {
  require(given != nullptr, "the attention's description is missing");
  const lamina_cuda_attention& a = *given;
  require(a.kv_heads > 0 && a.heads > 0 && a.heads % a.kv_heads == 0, "heads is not a multiple of kv_heads");
  require(a.heads <= 65535, "heads is more than 65535");
  if (a.latent == 0) {
    require(a.head_dim >= 16 && a.head_dim <= 256 && a.head_dim % 16 == 0,
            "head_dim is not a multiple of 16 between 16 and 256");
  } else {
    require(a.head_dim >= 16 && a.head_dim <= kLatentDim && a.head_dim % 16 == 0,
            "head_dim of a latent KV is not a multiple of 16 between 16 and 576");
    require(a.latent >= 16 && a.latent <= std::min(a.head_dim, kLatentValues) && a.latent % 16 == 0,
            "latent is not a multiple of 16 between 16 and head_dim, 512 at most");
  }
  require(a.shares >= 0 && a.shares <= kJoinedParts, "shares is not between 0 and 16");
  require(std::isfinite(a.scale), "scale is not a finite number");
  require(std::isfinite(a.soft_cap) && a.soft_cap >= 0, "soft_cap is neither 0 nor a positive number");
  return a;
}

bool aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

// How many blocks the device runs at once. The kernel gets all the shared memory that a block may have.
std::int32_t prepare(const AttendKernel& kernel, int device) {
  if (kernel.shared_bytes > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) {
    throw Failure{LAMINA_CUDA_NO_DEVICE, "this device has too little shared memory for heads this long"};
  }
  check(cudaFuncSetAttribute(kernel.entry, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
        "preparing the attention kernel");
  check(cudaFuncSetAttribute(kernel.entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "preparing the attention kernel");
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.entry, kernel.threads,
                                                      static_cast<std::size_t>(kernel.shared_bytes)),
        "asking how many blocks a multiprocessor runs");
  return std::max(blocks, 1) * attribute(cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

Problem::Problem(const lamina_cuda_attention* attention)
    : attention_(checked(attention)),
      kernels_(kernels_for(attention_.dtype)),
      attend_(latent() ? kernels_.attend_latent(group()) : kernels_.attend(group(), attention_.head_dim)) {}

std::int32_t Problem::workers(std::int32_t batch) const {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::int32_t> known;
  const int device = current_device();
  const std::lock_guard lock(mutex);
  auto match = known.find({device, attend_.entry});
  if (match == known.end()) {
    match = known.emplace(std::pair{device, attend_.entry}, prepare(attend_, device)).first;
  }
  // All passes together fill the device.
  const std::int32_t fitting = std::max(match->second / passes(), 1);
  // Putting a unit together takes longer the more parts it has.
  const std::int64_t most = std::int64_t{kJoinedParts} * batch * attention_.kv_heads;
  const std::int64_t wanted = std::int64_t{fitting} * std::max(attention_.shares, 1);
  return static_cast<std::int32_t>(std::max<std::int64_t>(fitting, std::min(wanted, most)));
}

Workspace::Size Problem::size(std::int32_t batch) const {
  return {batch, attention_.kv_heads, workers(batch), passes(), attend_.heads, value_dim()};
}

Workspace Problem::in(const lamina_cuda_workspace* workspace, std::int32_t batch) const {
  require(workspace != nullptr && workspace->memory != nullptr, "the workspace is missing");
  require(aligned(workspace->memory, 256), "the workspace does not begin at a multiple of 256 bytes");
  const Workspace match = Workspace::at(workspace->memory, size(batch));
  require(match.bytes <= workspace->bytes,
          "the workspace is smaller than lamina_cuda_workspace_bytes() says for this batch");
  return match;
}

Arena::Arena(const lamina_cuda_arena* arena, const Problem& problem) {
  require(arena != nullptr, "the arena is missing");
  void* const values = problem.latent() ? arena->k : arena->v;
  require(arena->k != nullptr && values != nullptr, "the arena is missing");
  const std::int64_t element = problem.kernels().element_bytes;
  require(aligned(arena->k, 16) && aligned(values, 16), "the arena does not begin at a multiple of 16 bytes");
  require(arena->slot_stride * element % 16 == 0 && arena->head_stride * element % 16 == 0,
          "the arena's strides are not multiples of 16 bytes");
  require(arena->slot_stride >= 0 && arena->slot_stride * element <= INT32_MAX,
          "the arena's slots are 2 GiB apart or more");
  k = static_cast<char*>(arena->k);
  v = static_cast<char*>(values);
  slot_bytes = static_cast<std::int32_t>(arena->slot_stride * element);
  head_bytes = arena->head_stride * element;
}

void require_lists(const lamina_cuda_lists* lists) {
  require(lists != nullptr && lists->batch >= 0, "the lists are missing");
  require(lists->batch == 0 || (lists->offsets != nullptr && lists->slots != nullptr),
          "the lists are missing");
  require(aligned(lists->offsets, 4) && aligned(lists->slots, 4), "the lists are not aligned to 4 bytes");
}

void require_partial(const lamina_cuda_partial* partial) {
  require(partial != nullptr, "the partial is missing");
  require_tensor(partial->out, "the partial's out is missing or not aligned to 16 bytes");
  require_tensor(partial->lse, "the partial's lse is missing or not aligned to 16 bytes");
}

void require_tensor(const void* tensor, const char* sentence) {
  require(tensor != nullptr && aligned(tensor, 16), sentence);
}

void require_rows(const Problem& problem, const void* k, const void* v) {
  require_tensor(k, "k is missing or not aligned to 16 bytes");
  if (!problem.latent()) require_tensor(v, "v is missing or not aligned to 16 bytes");
}

}  // namespace lamina::attention::cuda
