#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fhbn/rdma/lent_queue.hpp"
#include "fhbn/rdma/sender.hpp"

// Bindings shared by all writers that post to a NIC; the software NIC of the tests binds its own with them.
namespace lamina {

// Bytes of a ring, or of a sender's mirror of one, that the peer may write to.
inline std::size_t offered_bytes(const fhbn::RingMemory& memory, bool mirror) {
  return mirror ? fhbn::rdma::Sender::kOfferedBytes : memory.bytes();
}

template <typename Writer>
std::shared_ptr<fhbn::rdma::LentQueue> lend(const std::shared_ptr<Writer>& writer,
                                            std::shared_ptr<fhbn::RingMemory> segment, std::string peer,
                                            const std::vector<int>& watched, bool sends) {
  return std::make_shared<fhbn::rdma::LentQueue>(
      std::shared_ptr<fhbn::rdma::Mlx5Writer>(writer, &writer->connected()), std::move(segment),
      std::make_shared<fhbn::Peer>(std::move(peer), watched), sends);
}

template <typename Writer, typename Class>
void bind_lend(Class bound) {
  using namespace nanobind::literals;
  bound.def(
      "lend", &lend<Writer>, "segment"_a, "peer"_a, "watched"_a = std::vector<int>(), nanobind::kw_only(),
      "sends"_a,
      R"(Lends its queue to a device that posts there for an end of a channel, over its ring, or the mirror if it sends.

Nothing else writes by this writer from then on.)");
}

}  // namespace lamina
