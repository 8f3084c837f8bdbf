#include "python/fhbn_rdma.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "fhbn/rdma/connectx_writer.hpp"
#include "fhbn/rdma/device_ring.hpp"
#include "fhbn/rdma/lent_queue.hpp"
#include "fhbn/rdma/receiver.hpp"
#include "fhbn/rdma/sender.hpp"
#include "fhbn/rdma/verbs_writer.hpp"
#include "python/bindings.hpp"
#include "python/fhbn_ends.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

namespace rdma = fhbn::rdma;

nb::bytes gid_of(const rdma::PortAddress& port) { return nb::bytes(port.gid.raw, sizeof port.gid.raw); }

template <typename Writer>
nb::typed<nb::dict, nb::str, std::variant<nb::int_, nb::bytes>> address_of(const Writer& writer) {
  const rdma::VerbsAddress address = writer.address();
  nb::dict fields;
  fields["lid"] = address.port.lid;
  fields["gid"] = gid_of(address.port);
  fields["queue_pair"] = address.queue_pair;
  fields["first_psn"] = address.first_psn;
  fields["mtu"] = address.mtu;
  fields["memory"] = address.memory;
  fields["rkey"] = address.rkey;
  return fields;
}

template <typename Writer>
void connect(Writer& writer, std::uint16_t lid, const nb::bytes& gid, std::uint32_t queue_pair,
             std::uint32_t first_psn, std::uint32_t mtu, std::uint64_t memory, std::uint32_t rkey,
             const std::string& peer, std::uint8_t service_level, std::uint8_t traffic_class) {
  rdma::VerbsAddress address{{lid, {}}, queue_pair, first_psn, mtu, memory, rkey};
  if (gid.size() != sizeof address.port.gid.raw) throw nb::value_error("a GID has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(gid.data()), gid.size(), address.port.gid.raw);
  nb::gil_scoped_release nogil;
  writer.connect(address, peer, {service_level, traffic_class});
}

template <typename Writer, typename Memory>
void make_over(Writer* self, const std::string& device, std::shared_ptr<Memory> segment, bool mirror) {
  const std::size_t bytes = offered_bytes(*segment, mirror);
  new (self) Writer(rdma::VerbsDevice::open(device), std::move(segment), bytes);
}

// A writer whose connection libibverbs makes, whatever posts, over memory of this kind.
template <typename Writer, typename Memory>
auto bind_over(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<Writer, rdma::Writer>(m, name, doc, nb::is_final())
      .def("__init__", &make_over<Writer, Memory>, "device"_a, "segment"_a, nb::kw_only(), "mirror"_a,
           nb::call_guard<nb::gil_scoped_release>())  // to register much memory takes long
      .def_prop_ro("address", &address_of<Writer>)
      .def("connect", &connect<Writer>, nb::kw_only(), "lid"_a, "gid"_a, "queue_pair"_a, "first_psn"_a,
           "mtu"_a, "memory"_a, "rkey"_a, "peer"_a, "service_level"_a = 0, "traffic_class"_a = 0);
}

std::string mlx5_port(const std::string& name) {
  const auto device = rdma::VerbsDevice::open(name);
  rdma::require_mlx5(*device);
  return device->name();
}

constexpr std::size_t kMadeBytes = sizeof(lamina_cuda_ring);

std::shared_ptr<rdma::DeviceRing> device_ring(const nb::bytes& data, std::uint64_t message_bytes,
                                              std::uint32_t slots, std::uint32_t epoch,
                                              std::uint64_t first_seqno) {
  lamina_cuda_ring made;
  if (data.size() != sizeof made) throw nb::value_error("a device makes a lamina_cuda_ring");
  std::memcpy(&made, data.data(), sizeof made);
  return std::make_shared<rdma::DeviceRing>(fhbn::Geometry{message_bytes, slots, epoch, first_seqno}, made);
}

constexpr std::size_t kLeftBytes = sizeof(lamina_cuda_nic_left);

void close_lent(rdma::LentQueue& lent, const nb::bytes& data) {
  lamina_cuda_nic_left left;
  if (data.size() != sizeof left) throw nb::value_error("a device leaves a lamina_cuda_nic_left");
  std::memcpy(&left, data.data(), sizeof left);
  const nb::gil_scoped_release nogil;  // the NIC is waited for
  lent.close(left);
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
  m.def(
      "verbs_port", [](const std::string& device) { return rdma::VerbsDevice::open(device)->name(); },
      "device"_a, nb::call_guard<nb::gil_scoped_release>(),
      "The device and port that this name stands for, opened to see that it can be used; ChannelError says "
      "why not.");
  m.def("mlx5_port", &mlx5_port, "device"_a, nb::call_guard<nb::gil_scoped_release>(),
        "The same of one that the mlx5 engine can use.");
  nb::class_<rdma::DeviceRing, fhbn::RingMemory>(
      m, "DeviceRing",
      R"(A ring in a GPU's memory, which kernels and NICs reach and the host does not.

`made`: the lamina_cuda_ring that the library's ring_create() has filled in; this gives it back.)",
      nb::is_final())
      .def(nb::new_(&device_ring), "made"_a, nb::kw_only(), "message_bytes"_a, "slots"_a, "epoch"_a,
           "first_seqno"_a)
      .def_ro_static("made_bytes", &kMadeBytes, "Of a lamina_cuda_ring.");
  nb::class_<rdma::Writer>(m, "NicWriter", "What writes to a peer's memory for one end of a channel.");
  nb::class_<rdma::LentQueue>(m, "LentQueue", "A writer's queue while a device posts there.", nb::is_final())
      .def(
          "for_device",
          [](const rdma::LentQueue& lent, std::int64_t timeout_ns) {
            const lamina_cuda_nic nic = lent.for_device(timeout_ns);
            return nb::bytes(&nic, sizeof nic);
          },
          "timeout_ns"_a,
          "A lamina_cuda_nic: what the library's nic_create() is asked. It refers to this object.")
      .def_ro_static("left_bytes", &kLeftBytes, "Of a lamina_cuda_nic_left.")
      .def_prop_ro("peer_has_ended", &rdma::LentQueue::peer_has_ended)
      .def("close", &close_lent, "left"_a,
           "The device posts no more, and has left this: the peer is notified of the end, if the NIC "
           "works.");
  bind_over<rdma::VerbsWriter, fhbn::Segment>(
      m, "VerbsWriter",
      "Writes by libibverbs, over a port of an RDMA device as in mlx5_0:1; '' is the first that is up.");
  bind_lend<rdma::ConnectxWriter>(bind_over<rdma::ConnectxWriter, fhbn::RingMemory>(
      m, "ConnectxWriter",
      R"(Writes by work requests of our own, put into the queues that libibverbs has made on an mlx5 NIC.

Not verified on hardware.)"));
  bind_init<rdma::Sender>(bind_sender<rdma::Sender>(
      m, "NicSender", R"(The sending end of a channel over a NIC. For one thread at a time.

`segment` is a mirror of the receiver's ring: messages are put together there.)"));
  bind_init<rdma::Receiver>(bind_receiver<rdma::Receiver>(
      m, "NicReceiver",
      R"(The receiving end of a channel over a NIC, with the ring that the peer's NIC writes to.

For one thread at a time.)"));
  bind_message<rdma::Receiver>(m, "NicMessage");
}

}  // namespace lamina
