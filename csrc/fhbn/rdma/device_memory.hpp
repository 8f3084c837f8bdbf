#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fhbn/rdma/verbs_connection.hpp"

namespace lamina::fhbn::rdma {

// A file of the GPU's driver that stands for memory (cuMemGetHandleForAddressRange), and where in it that
// begins.
struct Dmabuf {
  int descriptor;
  std::uint64_t offset;
};

// Memory of a GPU, as its kernels address it.
struct DeviceMemory {
  std::uint64_t address;
  std::size_t bytes;
  std::optional<Dmabuf> dmabuf;
};

// Lets the NIC reach it, by its dmabuf, or without one by its address, for which nvidia-peermem has to be
// loaded. `access`: abi::kAccess... ChannelError says what is missing. Not verified on hardware.
RegisteredRegion registered(const VerbsDevice& device, const DeviceMemory& memory, int access);

}  // namespace lamina::fhbn::rdma
