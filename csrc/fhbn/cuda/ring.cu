#include <cuda.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/runtime.hpp"
#include "fhbn/cuda/mapped.hpp"
#include "fhbn/cuda/ring.h"
#include "fhbn/wire.hpp"

namespace lamina::fhbn::cuda {

namespace {

// As nvidia-peermem pins a GPU's memory; no page of a host's is larger.
constexpr std::size_t kPinned = 64 << 10;

// A kernel that has seen a message's number must see the message too, and only a call of the host's could
// flush what is on its way. Devices say whether they need that for what they read themselves.
void require_order() {
  const int order =
      lamina::cuda::attribute(cudaDevAttrGPUDirectRDMAWritesOrdering, lamina::cuda::current_device());
  if (order >= cudaGPUDirectRDMAWritesOrderingOwner) return;
  throw lamina::cuda::Failure{LAMINA_CUDA_FAILED,
                              "this GPU's kernels do not see what a NIC writes into its memory in order"};
}

int dmabuf_of(const std::byte* memory, std::size_t bytes) {
  constexpr unsigned kSince = 11070;
  void* match = nullptr;
  cudaDriverEntryPointQueryResult known{};
  lamina::cuda::check(cudaGetDriverEntryPointByVersion("cuMemGetHandleForAddressRange", &match, kSince,
                                                       cudaEnableDefault, &known),
                      "asking for the driver's dmabufs");
  int file = -1;
  const auto give = reinterpret_cast<decltype(&cuMemGetHandleForAddressRange)>(match);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
  const CUresult given =
      give == nullptr ? CUDA_ERROR_NOT_SUPPORTED
                      : give(&file, address, rounded_up(bytes, page), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (given == CUDA_SUCCESS) return file;
  throw lamina::cuda::Failure{LAMINA_CUDA_FAILED,
                              "the NVIDIA driver gives no dmabuf of the GPU's memory (error " +
                                  std::to_string(static_cast<int>(given)) + ")"};
}

// What lies before the slots, of a ring with nothing in it.
std::array<std::byte, kSlotsOffset> head_of(const lamina_cuda_ring_shape& shape) {
  Ring ring{};
  ring.preamble = {kMagic, shape.message_bytes, shape.first_seqno, shape.slots, shape.epoch};
  ring.published.seqno = ring.consumed.seqno = shape.first_seqno;
  std::array<std::byte, kSlotsOffset> head{};
  std::memcpy(head.data(), &ring, sizeof ring);
  return head;
}

void destroy(void* allocated) { cudaFree(allocated); }

}  // namespace

}  // namespace lamina::fhbn::cuda

namespace cuda = lamina::fhbn::cuda;
namespace fhbn = lamina::fhbn;

lamina_cuda_status lamina_cuda_ring_create(const lamina_cuda_ring_shape* shape, int32_t as_file,
                                           lamina_cuda_ring* ring) {
  return lamina::cuda::guarded([&] {
    lamina::cuda::require(shape != nullptr && fhbn::is_sound(shape->message_bytes, shape->slots),
                          "the ring has an impossible shape");
    lamina::cuda::require(ring != nullptr, "there is nowhere to put the ring");
    lamina::cuda::require_device();
    cuda::require_order();
    const std::size_t bytes = fhbn::ring_bytes(shape->message_bytes, shape->slots);
    auto allocated = cuda::device_memory<std::byte>(bytes + 2 * cuda::kPinned, "making a ring");
    auto* const memory = reinterpret_cast<std::byte*>(
        fhbn::rounded_up(reinterpret_cast<std::uintptr_t>(allocated.get()), cuda::kPinned));
    const auto head = cuda::head_of(*shape);
    cuda::write(memory, head.data(), head.size(), "making a ring");
    const int file = as_file != 0 ? cuda::dmabuf_of(memory, bytes) : -1;
    *ring = {memory, bytes, allocated.release(), &cuda::destroy, file};
  });
}
