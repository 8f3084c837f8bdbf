#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fhbn/rdma/queue.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

namespace rdma = fhbn::rdma;

constexpr const char* kQueueDoc =
    R"(An mlx5 send queue that no NIC reads: for looking at the bytes of work requests.

`first`: the number of the first block that is put; all before it are done.)";

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
    state_.next = state_.rung = state_.latest = state_.asked = state_.done = first;
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

void bind_fhbn_wqe(nb::module_& m) {
  nb::class_<WqeQueue>(m, "WqeQueue", kQueueDoc, nb::is_final())
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
