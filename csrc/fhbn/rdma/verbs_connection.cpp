#include "fhbn/rdma/verbs_connection.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <utility>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

constexpr std::uint32_t kNumbers = 1u << 24;  // of queue pairs, and of packets
// 4.096 us * 2^16, some 268 ms (a NIC may wait four times as long), for the first time and six more: a cut
// network is noticed within seconds, and a congested one is waited for. Soft-RoCE takes seven more to mean
// for ever.
constexpr std::uint8_t kTimeout = 16;
constexpr std::uint8_t kRetries = 6;
constexpr std::uint8_t kNotReadyTimer = 12;
constexpr std::uint8_t kHopLimit = 64;

std::string lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "; this process may lock " + std::to_string(limit.rlim_cur) +
         " bytes of memory: raise that limit (ulimit -l)";
}

}  // namespace

VerbsConnection::VerbsConnection(std::shared_ptr<VerbsDevice> device,
                                 std::shared_ptr<const RingMemory> memory, std::size_t offered_bytes,
                                 const Depth& depth)
    : device_(std::move(device)), memory_(std::move(memory)), first_psn_(std::random_device()() % kNumbers) {
  register_memory(offered_bytes);
  create_queues(depth);
  abi::QueuePairAttributes attributes{};
  attributes.state = abi::kStateInit;
  attributes.port = device_->port_number();
  attributes.access = abi::kAccessRemoteWrite;
  change(attributes, abi::kSetState | abi::kSetPkeyIndex | abi::kSetPort | abi::kSetAccess, "begin");
}

// What the peer may write to, and unless that is all of it, what is read from here: locked memory is counted
// once for each. No relaxed ordering: a message has to arrive before its number.
void VerbsConnection::register_memory(std::size_t offered_bytes) {
  offered_ = registered(offered_bytes, abi::kAccessLocalWrite | abi::kAccessRemoteWrite);
  if (offered_bytes < memory_->bytes()) own_ = registered(memory_->bytes(), 0);
  // A fork finds the ring where it was, though the library may have kept it back: shared memory is not
  // copied.
  if (!memory_->is_on_device()) ::madvise(memory_->memory(), memory_->bytes(), MADV_DOFORK);
}

RegisteredRegion VerbsConnection::registered(std::size_t bytes, int access) const {
  const bool by_file = memory_->is_on_device() && memory_->descriptor() >= 0;
  if (by_file && ibverbs().reg_dmabuf_mr == nullptr) {
    throw ChannelError("libibverbs.so.1 does not register dmabufs: install rdma-core 34 or newer");
  }
  void* const begin = memory_->memory();
  RegisteredRegion region(by_file ? ibverbs().reg_dmabuf_mr(device_->domain(), 0, bytes,
                                                            reinterpret_cast<std::uintptr_t>(begin),
                                                            memory_->descriptor(), access)
                                  : ibverbs().reg_mr(device_->domain(), begin, bytes, access));
  if (region) return region;
  const int error = errno;
  const std::string what = device_->name() + " cannot register " + std::to_string(bytes) + " bytes of ";
  if (!memory_->is_on_device()) {
    throw ChannelError(what + "memory: " + std::strerror(error) + (error == ENOMEM ? lock_limit() : ""));
  }
  throw ChannelError(
      what + "a GPU's memory (" + std::strerror(error) +
      (by_file ? "): its driver takes no dmabuf" : "): load nvidia-peermem (modprobe nvidia-peermem)"));
}

void VerbsConnection::create_queues(const Depth& depth) {
  completions_.reset(
      ibverbs().create_cq(device_->context(), static_cast<int>(depth.completions), nullptr, nullptr, 0));
  if (!completions_)
    throw ChannelError(device_->name() + " gives no completion queue: " + std::strerror(errno));
  abi::QueuePairInit init{};
  init.send_completions = init.receive_completions = completions_.get();
  init.capacity = {depth.requests, 1, 1, 1, depth.inline_bytes};
  init.type = abi::kReliableConnected;
  pair_.reset(ibverbs().create_qp(device_->domain(), &init));
  if (!pair_) throw ChannelError(device_->name() + " gives no queue pair: " + std::strerror(errno));
}

VerbsAddress VerbsConnection::address() const {
  return {device_->address(),
          pair_->number,
          first_psn_,
          device_->port().active_mtu,
          reinterpret_cast<std::uintptr_t>(memory_->memory()),
          offered_->rkey};
}

// Validates a peer's values, which kernel and NIC would reject with a bare number.
void VerbsConnection::require_sound(const VerbsAddress& peer, const std::string& peer_name) const {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw ChannelError(peer_name + " has sent an address that cannot be: " + what);
  };
  require(peer.queue_pair < kNumbers && peer.first_psn < kNumbers, "numbers of more than 24 bits");
  require(peer.mtu >= 1 && peer.mtu <= 5, "an MTU that is none of 1 (256 bytes) to 5 (4096)");
  require(peer.memory <= std::numeric_limits<std::uint64_t>::max() - memory_->bytes(),
          "memory that goes beyond the last address");
  const auto& gid = peer.port.gid.raw;
  if (device_->is_routed()) {
    require(std::any_of(std::begin(gid), std::end(gid), [](std::uint8_t byte) { return byte != 0; }),
            "no GID, and " + device_->name() + " reaches others by theirs");
  } else {
    require(peer.port.lid != 0,
            "no LID, as of a port on Ethernet, and " + device_->name() + " is on InfiniBand");
  }
}

void VerbsConnection::connect(const VerbsAddress& peer, const std::string& peer_name,
                              const Quality& quality) {
  require_sound(peer, peer_name);
  peer_ = peer;
  peer_name_ = peer_name;
  abi::QueuePairAttributes receiving = path_to(peer, quality);
  change(receiving,
         abi::kSetState | abi::kSetPath | abi::kSetPathMtu | abi::kSetDestination | abi::kSetReceivePsn |
             abi::kSetReadsServed | abi::kSetNotReadyTimer,
         "reach its peer");
  abi::QueuePairAttributes sending{};
  sending.state = abi::kStateReadyToSend;
  sending.send_psn = first_psn_;
  sending.timeout = kTimeout;
  sending.retries = sending.not_ready_retries = kRetries;
  change(sending,
         abi::kSetState | abi::kSetSendPsn | abi::kSetTimeout | abi::kSetRetries | abi::kSetNotReadyRetries |
             abi::kSetReadsIssued,
         "send");
}

abi::QueuePairAttributes VerbsConnection::path_to(const VerbsAddress& peer, const Quality& quality) const {
  abi::QueuePairAttributes attributes{};
  attributes.state = abi::kStateReadyToReceive;
  attributes.path_mtu = std::min(device_->port().active_mtu, peer.mtu);
  attributes.destination = peer.queue_pair;
  attributes.receive_psn = peer.first_psn;
  attributes.not_ready_timer = kNotReadyTimer;
  abi::AddressVector& path = attributes.path;
  path.port = device_->port_number();
  path.destination_lid = peer.port.lid;
  path.service_level = quality.service_level;
  if (device_->is_routed()) {
    path.is_global = 1;
    path.global.destination = peer.port.gid;
    path.global.source_index = device_->gid_index();
    path.global.hop_limit = kHopLimit;
    path.global.traffic_class = quality.traffic_class;
  }
  return attributes;
}

void VerbsConnection::change(abi::QueuePairAttributes& attributes, int which, const char* to) {
  const int error = ibverbs().modify_qp(pair_.get(), &attributes, which);
  if (error == 0) return;
  throw ChannelError(device_->name() + ": the queue pair to " + peer_name_ + " cannot " + to + ": " +
                     std::strerror(error));
}

}  // namespace lamina::fhbn::rdma
