#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fhbn/rdma/queue.hpp"
#include "python/fhbn_rdma.hpp"
#include "softnic/soft_writer.hpp"

// The software NIC and the bytes of work requests in Python, as lamina._softnic.
namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

namespace rdma = fhbn::rdma;

void make_soft(rdma::SoftWriter* self, std::shared_ptr<rdma::SoftNic> nic,
               std::shared_ptr<fhbn::RingMemory> segment, bool mirror) {
  const std::size_t bytes = offered_bytes(*segment, mirror);
  new (self) rdma::SoftWriter(std::move(nic), std::move(segment), bytes);
}

using Registered = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;  // address, bytes, key

Registered registered_as(const rdma::SoftWriter& writer) {
  const rdma::RemoteMemory memory = writer.address();
  return {memory.address, memory.bytes, memory.key};
}

void connect_soft(rdma::SoftWriter& writer, const std::shared_ptr<fhbn::Segment>& peer_memory,
                  const Registered& known_as, const Registered& requested, const std::string& peer) {
  if (std::get<1>(known_as) > peer_memory->bytes()) throw nb::value_error("more is registered than there is");
  const auto memory = [](const Registered& given) { return std::make_from_tuple<rdma::RemoteMemory>(given); };
  writer.connect(peer_memory, memory(known_as), memory(requested), peer);
}

nb::typed<nb::dict, nb::str, nb::int_> counts_of(const rdma::SoftWriter& writer) {
  const rdma::SoftCounts& match = writer.counts();
  nb::dict counts;
  counts["posted"] = writer.posted();
  counts["blueflames"] = match.blueflames.load();
  counts["fetched"] = match.fetched.load();
  counts["completions"] = match.completions.load();
  return counts;
}

class WqeQueue {
public:
  WqeQueue(std::uint32_t blocks, std::uint32_t qpn, std::uint32_t first) {
    if (!rdma::is_sound(blocks)) throw nb::value_error("a send queue has 8 to 32,768 blocks, a power of two");
    if (qpn > 0xffffff) throw nb::value_error("a queue pair's number has 24 bits");
    memory_.resize(std::size_t{blocks} * rdma::kBlockBytes);
    queue_ = {.requests = memory_.data(),
              .doorbell_record = nullptr,
              .registers = nullptr,
              .blocks = blocks,
              .qpn = qpn,
              .half_bytes = 0,
              .blueflame = false};
    state_.next = state_.rung = state_.latest = state_.signalled = state_.done = first;
  }

  void put_write(std::uint64_t local, std::uint32_t local_key, std::uint64_t remote, std::uint32_t remote_key,
                 std::uint32_t bytes) {
    require_room(1);
    rdma::put_write(queue_, state_, local, local_key, {remote, remote_key}, bytes);
  }

  void put_inline(const nb::bytes& data, std::uint64_t remote, std::uint32_t remote_key) {
    if (data.size() > rdma::kLongInline) throw nb::value_error("more bytes than fit into a request");
    const auto bytes = static_cast<std::uint32_t>(data.size());
    require_room(rdma::blocks_of(rdma::inline_segments(bytes)));
    const rdma::Remote to{remote, remote_key};
    if (bytes <= rdma::kShortInline) {
      rdma::put_inline<rdma::kShortInline>(queue_, state_, data.c_str(), to, bytes);
    } else {
      rdma::put_inline<rdma::kLongInline>(queue_, state_, data.c_str(), to, bytes);
    }
  }

  void put_nothing() {
    require_room(1);
    rdma::put_nothing(queue_, state_);
  }

  std::uint32_t next() const { return state_.next; }
  nb::bytes requests() const { return nb::bytes(memory_.data(), memory_.size()); }

private:
  void require_room(std::uint32_t blocks) const {
    if (rdma::free_blocks(queue_, state_) < blocks) throw nb::value_error("the queue is full");
  }

  std::vector<std::byte> memory_;
  rdma::SendQueue queue_;
  rdma::SendState state_;
};

}  // namespace

NB_MODULE(_softnic, m) {
  nb::module_::import_("lamina._native");  // has the base class of SoftWriter, and LentQueue
  nb::class_<rdma::SoftNic>(
      m, "SoftNic",
      R"(A thread that does for queue pairs what an mlx5 NIC does: a test bench, and no measure of RDMA.

`drops_blueflame`: it fetches every request from the queue. `reorders`: it executes requests in the strangest
order that a NIC may.)",
      nb::is_final(), nb::is_weak_referenceable())
      .def(
          "__init__",
          [](rdma::SoftNic* self, bool drops_blueflame, bool reorders, std::uint64_t seed) {
            new (self) rdma::SoftNic({drops_blueflame, reorders, seed});
          },
          nb::kw_only(), "drops_blueflame"_a = false, "reorders"_a = false, "seed"_a = 1);
  bind_lend<rdma::SoftWriter>(
      nb::class_<rdma::SoftWriter, rdma::Writer>(
          m, "SoftWriter", "Writes through a softnic, by work requests as an mlx5 NIC reads them.",
          nb::is_final())
          .def("__init__", &make_soft, "nic"_a, "segment"_a, nb::kw_only(), "mirror"_a)
          .def_prop_ro("registered_as", &registered_as)
          .def("connect", &connect_soft, "peer_memory"_a, nb::kw_only(), "known_as"_a, "requested"_a,
               "peer"_a)
          .def("unplug", &rdma::SoftWriter::unplug)
          .def("fail", &rdma::SoftWriter::fail)
          .def_prop_ro("counts", &counts_of));
  nb::class_<WqeQueue>(m, "WqeQueue",
                       R"(An mlx5 send queue that no NIC reads: for looking at the bytes of work requests.

`first`: the number of the first block that is put; all before it are done.)",
                       nb::is_final())
      .def(nb::init<std::uint32_t, std::uint32_t, std::uint32_t>(), "blocks"_a, nb::kw_only(), "qpn"_a,
           "first"_a)
      .def("put_write", &WqeQueue::put_write, nb::kw_only(), "local"_a, "local_key"_a, "remote"_a,
           "remote_key"_a, "nbytes"_a)
      .def("put_inline", &WqeQueue::put_inline, "data"_a, nb::kw_only(), "remote"_a, "remote_key"_a)
      .def("put_nothing", &WqeQueue::put_nothing)
      .def_prop_ro("next", &WqeQueue::next)
      .def_prop_ro("requests", &WqeQueue::requests);
}

}  // namespace lamina
