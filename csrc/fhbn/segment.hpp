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

// Memory that two processes share, with a ring in it. It has no name in any file system: it can be reached
// only through its file descriptor, is not limited by /dev/shm, and the kernel takes it back when the last
// process that maps it ends, however it ends. Its size is sealed, so that no peer can cut it off under us.
class Segment : public std::enable_shared_from_this<Segment> {
public:
  // What create() takes. std::invalid_argument if there can be no such ring.
  static std::size_t bytes_for(std::uint64_t message_bytes, std::uint32_t slots);
  // The receiver's: new, zeroed, in memory.
  static std::shared_ptr<Segment> create(const Geometry& geometry);
  // The sender's. std::invalid_argument if this is no such memory; the descriptor stays the caller's.
  static std::shared_ptr<Segment> attach(int descriptor);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Ring& ring() const { return *static_cast<Ring*>(memory_); }
  SlotHeader& slot(std::uint64_t seqno) const {
    return *reinterpret_cast<SlotHeader*>(first_slot_ + (seqno & (geometry_.slots - 1)) * stride_);
  }
  // As it was checked; what lies in the memory itself may change.
  const Geometry& geometry() const { return geometry_; }
  std::size_t bytes() const { return bytes_; }
  void* memory() const { return memory_; }
  // To be sent to the peer; closed with the segment.
  int descriptor() const { return descriptor_; }

private:
  Segment(int descriptor, void* memory, std::size_t bytes, const Geometry& geometry);

  int descriptor_;
  void* memory_;
  std::size_t bytes_;
  Geometry geometry_;
  std::size_t stride_;
  std::byte* first_slot_;
};

}  // namespace lamina::fhbn
