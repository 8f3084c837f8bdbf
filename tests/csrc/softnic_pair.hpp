#pragma once

// Two ends' memories and softnics, connected both ways, for tests.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "expect.hpp"
#include "softnic/softnic.hpp"

namespace softnic_test {

using namespace lamina::fhbn;
using namespace lamina::fhbn::rdma;
using namespace std::chrono_literals;

// For what must happen, on however busy a machine.
inline constexpr Duration kLong = 60s;

// One end: its memory, registered with a softnic of its own.
struct Host {
  struct alignas(128) Line {
    std::byte bytes[128];
  };

  Host(std::size_t size, const SoftHabits& habits)
      : memory(std::make_shared<std::vector<Line>>((size + sizeof(Line) - 1) / sizeof(Line))),
        nic(habits),
        local(nic.register_memory(begin(), memory->size() * sizeof(Line), memory)) {}

  std::byte* begin() const { return reinterpret_cast<std::byte*>(memory->data()); }
  // What the handshake tells the other end.
  RemoteMemory remote() const {
    return {reinterpret_cast<std::uintptr_t>(local.memory), local.bytes, local.key};
  }
  PeerMemory as_peer() const { return {begin(), remote(), memory}; }

  std::shared_ptr<std::vector<Line>> memory;
  SoftNic nic;
  LocalMemory local;
};

}  // namespace softnic_test
