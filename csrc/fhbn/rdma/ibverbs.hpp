#pragma once

#include <cstddef>
#include <cstdint>

#include "fhbn/rdma/ibverbs_abi.hpp"

namespace lamina::fhbn::rdma {

// The functions of libibverbs that a channel calls.
struct Ibverbs {
  abi::Device** (*get_device_list)(int* count);
  void (*free_device_list)(abi::Device** list);
  const char* (*get_device_name)(abi::Device* device);
  abi::Context* (*open_device)(abi::Device* device);
  int (*close_device)(abi::Context* context);
  int (*query_port)(abi::Context* context, std::uint8_t port, abi::PortAttributes* attributes);
  std::ptrdiff_t (*query_gid_table)(abi::Context* context, abi::GidEntry* entries, std::size_t most,
                                    std::uint32_t flags, std::size_t entry_bytes);
  abi::ProtectionDomain* (*alloc_pd)(abi::Context* context);
  int (*dealloc_pd)(abi::ProtectionDomain* domain);
  abi::MemoryRegion* (*reg_mr)(abi::ProtectionDomain* domain, void* address, std::size_t bytes, int access);
  // Null before rdma-core 34.
  abi::MemoryRegion* (*reg_dmabuf_mr)(abi::ProtectionDomain* domain, std::uint64_t offset, std::size_t bytes,
                                      std::uint64_t address, int descriptor, int access);
  int (*dereg_mr)(abi::MemoryRegion* region);
  abi::CompletionQueue* (*create_cq)(abi::Context* context, int entries, void* own, void* channel,
                                     int vector);
  int (*destroy_cq)(abi::CompletionQueue* queue);
  abi::QueuePair* (*create_qp)(abi::ProtectionDomain* domain, abi::QueuePairInit* init);
  int (*modify_qp)(abi::QueuePair* pair, abi::QueuePairAttributes* attributes, int which);
  int (*destroy_qp)(abi::QueuePair* pair);
};

// Loaded on first use, and never unloaded. ChannelError if this machine has no libibverbs, or
// one that is too old.
const Ibverbs& ibverbs();

}  // namespace lamina::fhbn::rdma
