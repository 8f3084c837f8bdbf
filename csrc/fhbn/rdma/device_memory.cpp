#include "fhbn/rdma/device_memory.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

RegisteredRegion by_file(const VerbsDevice& device, const DeviceMemory& memory, int access) {
  if (ibverbs().reg_dmabuf_mr == nullptr) {
    throw ChannelError("libibverbs.so.1 does not register dmabufs: install rdma-core 34 or newer");
  }
  return RegisteredRegion(ibverbs().reg_dmabuf_mr(device.domain(), memory.dmabuf->offset, memory.bytes,
                                                  memory.address, memory.dmabuf->descriptor, access));
}

}  // namespace

RegisteredRegion registered(const VerbsDevice& device, const DeviceMemory& memory, int access) {
  RegisteredRegion region =
      memory.dmabuf ? by_file(device, memory, access)
                    : RegisteredRegion(ibverbs().reg_mr(
                          device.domain(), reinterpret_cast<void*>(memory.address), memory.bytes, access));
  if (region) return region;
  const std::string why = std::strerror(errno);
  throw ChannelError(
      device.name() + " cannot register " + std::to_string(memory.bytes) + " bytes of a GPU's memory (" +
      why +
      (memory.dmabuf ? "): its driver takes no dmabuf" : "): load nvidia-peermem (modprobe nvidia-peermem)"));
}

}  // namespace lamina::fhbn::rdma
