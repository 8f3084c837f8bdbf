#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fhbn/rdma/connectx_writer.hpp"
#include "fhbn/rdma/lent_queue.hpp"
#include "fhbn/rdma/mlx5dv.hpp"
#include "fhbn/rdma/receiver.hpp"
#include "fhbn/rdma/sender.hpp"
#include "fhbn/rdma/soft_writer.hpp"
#include "fhbn/rdma/verbs_writer.hpp"
#include "python/bindings.hpp"
#include "python/fhbn_ends.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

namespace rdma = fhbn::rdma;

using Numbers = nb::typed<nb::dict, nb::str, nb::int_>;

constexpr const char* kSenderDoc =
    R"(The sending end of a channel over a NIC. For one thread at a time.

`segment` is a mirror of the receiver's ring: messages are put together there.)";

constexpr const char* kReceiverDoc =
    R"(The receiving end of a channel over a NIC, with the ring that the peer's NIC writes to.

For one thread at a time.)";

constexpr const char* kWriterDoc = R"(What writes to a peer's memory for one end of a channel.)";

constexpr const char* kVerbsDoc =
    R"(Writes by libibverbs, over a port of an RDMA device as in mlx5_0:1; '' is the first that is up.)";

constexpr const char* kConnectxDoc =
    R"(Writes by work requests of our own, put into the queues that libibverbs has made on an mlx5 NIC.

Not verified on hardware.)";

constexpr const char* kSoftNicDoc =
    R"(A thread that does for queue pairs what an mlx5 NIC does: a test bench, and no measure of RDMA.

`drops_blueflame`: it fetches every request from the queue. `reorders`: it does what it is told in the strangest
order that a NIC may.)";

constexpr const char* kSoftDoc = R"(Writes through a softnic, by work requests as an mlx5 NIC reads them.)";

constexpr const char* kLendDoc =
    R"(Lends its queue to a device that posts there for an end of a channel, over its ring, or the mirror if it sends.

Nothing else writes by this writer from then on.)";

constexpr const char* kLentDoc = R"(A writer's queue while a device posts there, and where it is.)";

constexpr const char* kCloseLentDoc =
    R"(The device posts no more: goes on where it has left the queue, and tells the peer that this was the end.

`told` is the number that the device has told the peer last.)";

constexpr const char* kDevicesDoc =
    R"(The names of this machine's RDMA devices; ChannelError without libibverbs.)";

constexpr const char* kPortDoc =
    R"(The device and port that this name stands for, opened to see that it can be used; ChannelError says why not.)";

constexpr const char* kMlx5PortDoc = R"(The same of one that the mlx5 engine can use.)";

nb::bytes gid_of(const rdma::PortAddress& port) { return nb::bytes(port.gid.raw, sizeof port.gid.raw); }

template <typename Writer>
nb::typed<nb::dict, nb::str, std::variant<nb::int_, nb::bytes>> address_of(const Writer& writer) {
  const rdma::VerbsAddress address = writer.address();
  nb::dict said;
  said["lid"] = address.port.lid;
  said["gid"] = gid_of(address.port);
  said["queue_pair"] = address.queue_pair;
  said["first_psn"] = address.first_psn;
  said["mtu"] = address.mtu;
  said["memory"] = address.memory;
  said["rkey"] = address.rkey;
  return said;
}

template <typename Writer>
void connect(Writer& writer, std::uint16_t lid, const nb::bytes& gid, std::uint32_t queue_pair,
             std::uint32_t first_psn, std::uint32_t mtu, std::uint64_t memory, std::uint32_t rkey,
             const std::string& peer) {
  rdma::VerbsAddress address{{lid, {}}, queue_pair, first_psn, mtu, memory, rkey};
  if (gid.size() != sizeof address.port.gid.raw) throw nb::value_error("a GID has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(gid.data()), gid.size(), address.port.gid.raw);
  nb::gil_scoped_release nogil;
  writer.connect(address, peer);
}

std::size_t offered(const fhbn::Segment& segment, bool mirror) {
  return mirror ? rdma::Sender::kOfferedBytes : segment.bytes();
}

template <typename Writer>
void make_on_device(Writer* self, const std::string& device, std::shared_ptr<fhbn::Segment> segment,
                    bool mirror) {
  const std::size_t bytes = offered(*segment, mirror);
  new (self) Writer(rdma::VerbsDevice::open(device), std::move(segment), bytes);
}

// A writer whose connection libibverbs makes, whatever posts.
template <typename Writer>
auto bind_on_device(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<Writer, rdma::Writer>(m, name, doc, nb::is_final())
      .def("__init__", &make_on_device<Writer>, "device"_a, "segment"_a, nb::kw_only(), "mirror"_a,
           nb::call_guard<nb::gil_scoped_release>())  // to register much memory takes long
      .def_prop_ro("address", &address_of<Writer>)
      .def("connect", &connect<Writer>, nb::kw_only(), "lid"_a, "gid"_a, "queue_pair"_a, "first_psn"_a,
           "mtu"_a, "memory"_a, "rkey"_a, "peer"_a);
}

std::string mlx5_port(const std::string& name) {
  const auto device = rdma::VerbsDevice::open(name);
  rdma::require_mlx5(*device);
  return device->name();
}

void make_soft(rdma::SoftWriter* self, std::shared_ptr<rdma::SoftNic> nic,
               std::shared_ptr<fhbn::Segment> segment, bool mirror) {
  const std::size_t bytes = offered(*segment, mirror);
  new (self) rdma::SoftWriter(std::move(nic), std::move(segment), bytes);
}

using Registered = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;  // address, bytes, key

Registered registered_as(const rdma::SoftWriter& writer) {
  const rdma::RemoteMemory memory = writer.address();
  return {memory.address, memory.bytes, memory.key};
}

void connect_soft(rdma::SoftWriter& writer, const std::shared_ptr<fhbn::Segment>& peer_memory,
                  const Registered& known_as, const Registered& told, const std::string& peer) {
  if (std::get<1>(known_as) > peer_memory->bytes()) throw nb::value_error("more is registered than there is");
  const auto memory = [](const Registered& said) { return std::make_from_tuple<rdma::RemoteMemory>(said); };
  writer.connect(peer_memory, memory(known_as), memory(told), peer);
}

Numbers counts_of(const rdma::SoftWriter& writer) {
  const rdma::SoftCounts& found = writer.counts();
  nb::dict counts;
  counts["doorbells"] = found.doorbells.load();
  counts["blueflames"] = found.blueflames.load();
  counts["fetched"] = found.fetched.load();
  counts["completions"] = found.completions.load();
  return counts;
}

template <typename Writer>
std::shared_ptr<rdma::LentQueue> lend(const std::shared_ptr<Writer>& writer,
                                      std::shared_ptr<fhbn::Segment> segment, std::string peer,
                                      const std::vector<int>& watched, bool sends) {
  return std::make_shared<rdma::LentQueue>(std::shared_ptr<rdma::Mlx5Writer>(writer, &writer->connected()),
                                           std::move(segment),
                                           std::make_shared<fhbn::Peer>(std::move(peer), watched), sends);
}

template <typename Writer, typename Class>
void bind_lend(Class bound) {
  bound.def("lend", &lend<Writer>, "segment"_a, "peer"_a, "watched"_a = std::vector<int>(), nb::kw_only(),
            "sends"_a, kLendDoc);
}

// Named as in lamina_cuda_nic_queues.
Numbers queues_of(const rdma::LentQueue& lent) {
  const rdma::QueuePair& pair = lent.writer().queues();
  nb::dict queues;
  const auto address = [&](const char* name, const void* memory) {
    queues[name] = reinterpret_cast<std::uintptr_t>(memory);
  };
  address("requests", pair.send.requests);
  address("send_record", pair.send.doorbell_record);
  address("registers", pair.send.registers);
  address("completions", pair.completions.entries);
  address("completion_record", pair.completions.doorbell_record);
  queues["blocks"] = pair.send.blocks;
  queues["completion_count"] = pair.completions.count;
  queues["qpn"] = pair.send.qpn;
  queues["half_bytes"] = pair.send.half_bytes;
  queues["registers_are_io"] = pair.registers_are_memory ? 0 : 1;
  return queues;
}

using State = std::array<std::uint32_t, sizeof(rdma::SendState) / sizeof(std::uint32_t)>;

void close_lent(rdma::LentQueue& lent, const State& state, std::uint64_t told) {
  const nb::gil_scoped_release nogil;  // the NIC is waited for
  lent.close(std::bit_cast<rdma::SendState>(state), told);
}

void bind_lent(nb::module_& m) {
  nb::class_<rdma::LentQueue>(m, "LentQueue", kLentDoc, nb::is_final())
      .def_prop_ro("queues", &queues_of)
      .def_prop_ro("state",
                   [](const rdma::LentQueue& lent) -> nb::typed<nb::tuple, std::uint32_t, nb::ellipsis> {
                     return nb::tuple(nb::cast(std::bit_cast<State>(lent.writer().state())));
                   })
      .def_prop_ro("local_key", [](const rdma::LentQueue& lent) { return lent.writer().local().key; })
      .def_prop_ro("remote_key", [](const rdma::LentQueue& lent) { return lent.writer().remote().key; })
      .def_prop_ro("remote_address",
                   [](const rdma::LentQueue& lent) { return lent.writer().remote().address; })
      .def_prop_ro("peer_has_closed", &rdma::LentQueue::peer_has_closed)
      .def_prop_ro("peer_has_ended", &rdma::LentQueue::peer_has_ended)
      .def("close", &close_lent, "state"_a, "told"_a, kCloseLentDoc);
}

template <typename T>
void make_end(End<T>* self, std::shared_ptr<fhbn::Segment> segment, std::shared_ptr<rdma::Writer> writer,
              std::string peer, const std::vector<int>& watched, std::string engine, double timeout_s,
              double spin_s) {
  new (self) End<T>(std::move(engine), timeout_s, std::move(segment), std::move(writer),
                    std::make_shared<fhbn::Peer>(std::move(peer), watched), seconds(spin_s));
}

template <typename T, typename Class>
void bind_init(Class bound) {
  bound.def("__init__", &make_end<T>, "segment"_a, "writer"_a, "peer"_a, "watched"_a = std::vector<int>(),
            nb::kw_only(), "engine"_a, "timeout_s"_a, "spin_s"_a);
}

}  // namespace

void bind_fhbn_rdma(nb::module_& m) {
  m.def("verbs_devices", &rdma::verbs_devices, kDevicesDoc);
  m.def(
      "verbs_port", [](const std::string& device) { return rdma::VerbsDevice::open(device)->name(); },
      "device"_a, nb::call_guard<nb::gil_scoped_release>(), kPortDoc);
  m.def("mlx5_port", &mlx5_port, "device"_a, nb::call_guard<nb::gil_scoped_release>(), kMlx5PortDoc);
  nb::class_<rdma::Writer>(m, "NicWriter", kWriterDoc);
  bind_lent(m);
  bind_on_device<rdma::VerbsWriter>(m, "VerbsWriter", kVerbsDoc);
  bind_lend<rdma::ConnectxWriter>(bind_on_device<rdma::ConnectxWriter>(m, "ConnectxWriter", kConnectxDoc));
  nb::class_<rdma::SoftNic>(m, "SoftNic", kSoftNicDoc, nb::is_final(), nb::is_weak_referenceable())
      .def(
          "__init__",
          [](rdma::SoftNic* self, bool drops_blueflame, bool reorders, std::uint64_t seed) {
            new (self) rdma::SoftNic({drops_blueflame, reorders, seed});
          },
          nb::kw_only(), "drops_blueflame"_a = false, "reorders"_a = false, "seed"_a = 1);
  bind_lend<rdma::SoftWriter>(
      nb::class_<rdma::SoftWriter, rdma::Writer>(m, "SoftWriter", kSoftDoc, nb::is_final())
          .def("__init__", &make_soft, "nic"_a, "segment"_a, nb::kw_only(), "mirror"_a)
          .def_prop_ro("registered_as", &registered_as)
          .def("connect", &connect_soft, "peer_memory"_a, nb::kw_only(), "known_as"_a, "told"_a, "peer"_a)
          .def("unplug", &rdma::SoftWriter::unplug)
          .def("fail", &rdma::SoftWriter::fail)
          .def_prop_ro("counts", &counts_of));
  bind_init<rdma::Sender>(bind_sender<rdma::Sender>(m, "NicSender", kSenderDoc));
  bind_init<rdma::Receiver>(bind_receiver<rdma::Receiver>(m, "NicReceiver", kReceiverDoc));
  bind_message<rdma::Receiver>(m, "NicMessage");
}

}  // namespace lamina
