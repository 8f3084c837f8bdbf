#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fhbn/wire.hpp"

namespace lamina::fhbn {

struct Geometry {
  std::uint64_t message_bytes;
  std::uint32_t slots;
  std::uint32_t epoch;
  std::uint64_t first_seqno;
};

// Memory with a ring in it, or the mirror of one: as kernels and NICs need it. Who else may
// touch it, its kind says. A softnic's thread may be the last to let go of it: so that this never waits for
// Python, the bindings find the one owner that there is.
class RingMemory : public std::enable_shared_from_this<RingMemory> {
public:
  virtual ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  // As it was checked; what lies in the memory itself may change.
  const Geometry& geometry() const { return geometry_; }
  std::size_t bytes() const { return bytes_; }
  void* memory() const { return memory_; }
  bool is_on_device() const { return is_on_device_; }
  // To be sent to the peer, or given to a NIC; closed with this. -1: there is none.
  int descriptor() const { return descriptor_; }

protected:
  RingMemory(int descriptor, void* memory, std::size_t bytes, const Geometry& geometry, bool is_on_device);

private:
  int descriptor_;
  void* memory_;
  std::size_t bytes_;
  Geometry geometry_;
  bool is_on_device_;
};

// Memory that two processes share, with a ring in it. It has no name in any file system: it can be reached
// only through its file descriptor, is not limited by /dev/shm, and the kernel takes it back when the last
// process that maps it ends, however it ends. Its size is sealed, so that no peer can cut it off under us.
class Segment final : public RingMemory {
public:
  // What create() takes. std::invalid_argument if there can be no such ring.
  static std::size_t bytes_for(std::uint64_t message_bytes, std::uint32_t slots);
  // The receiver's: new, zeroed, in memory.
  static std::shared_ptr<Segment> create(const Geometry& geometry);
  // The sender's. std::invalid_argument if this is no such memory; the descriptor stays the caller's.
  static std::shared_ptr<Segment> attach(int descriptor);

  ~Segment() override;

  Ring& ring() const { return *static_cast<Ring*>(memory()); }
  SlotHeader& slot(std::uint64_t seqno) const {
    return *reinterpret_cast<SlotHeader*>(first_slot_ + (seqno & (geometry().slots - 1)) * stride_);
  }

private:
  Segment(int descriptor, void* memory, std::size_t bytes, const Geometry& geometry);

  std::size_t stride_;
  std::byte* first_slot_;
};

}  // namespace lamina::fhbn
