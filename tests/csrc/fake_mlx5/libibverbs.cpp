// As much of libibverbs as lamina calls. Nobody posts by it: its queue pairs have queues only for who makes
// their own requests.
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fake_mlx5/fake_mlx5.hpp"
#include "softnic/softnic.hpp"

namespace rdma = lamina::fhbn::rdma;
namespace abi = rdma::abi;

struct rdma::abi::Device {};

namespace {

struct FakeContext : abi::Context {
  std::unique_ptr<rdma::SoftNic> nic;
};

struct FakePair : abi::QueuePair {
  rdma::QueuePair soft;
  std::uint32_t blocks;
  std::uint32_t called;  // the number it had before it was connected, which its peer has been told
};

std::recursive_mutex mutex;
int alive = 0;
bool hidden_from_forks = false;
std::uint64_t bytes_registered = 0;
abi::AddressVector path{};
std::uint64_t taken_whole = 0, taken_from_queue = 0;
std::uint32_t next_number = 1;
std::map<std::uint32_t, FakePair*> pairs;
std::map<abi::ProtectionDomain*, rdma::RemoteMemory> offered;  // the last that peers may write to

FakeContext& of(abi::Context* context) { return *static_cast<FakeContext*>(context); }

// As the library does it from ibv_fork_init() on, on kernels that need it.
void advise(void* address, std::size_t bytes, int advice) {
  constexpr std::uintptr_t kPage = 4096;
  if (!hidden_from_forks) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(address) / kPage * kPage;
  const auto end = (reinterpret_cast<std::uintptr_t>(address) + bytes + kPage - 1) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

abi::MemoryRegion* registered(abi::ProtectionDomain* domain, void* address, std::size_t bytes, int access) {
  const std::lock_guard lock(mutex);
  const auto known =
      of(domain->context).nic->register_memory(static_cast<std::byte*>(address), bytes, nullptr);
  if ((access & abi::kAccessRemoteWrite) != 0) {
    offered[domain] = {reinterpret_cast<std::uintptr_t>(address), bytes, known.key};
  }
  advise(address, bytes, MADV_DONTFORK);
  bytes_registered += bytes;
  ++alive;
  return new abi::MemoryRegion{domain->context, domain, address, bytes, 0, known.key, known.key};
}

// To the peer of that number, which is in this process.
int connect(FakePair& pair, std::uint32_t destination) {
  const auto peer = pairs.find(destination);
  if (peer == pairs.end()) return EHOSTUNREACH;
  const rdma::RemoteMemory& memory = offered.at(peer->second->domain);
  pair.soft = of(pair.context)
                  .nic->connect(pair.blocks, {reinterpret_cast<std::byte*>(memory.address), memory, nullptr});
  pair.number = pair.soft.send.qpn;
  return 0;
}

}  // namespace

namespace fake_mlx5 {

Settings& settings() {
  static Settings all;
  return all;
}
int living() { return alive; }
std::uint64_t registered_bytes() { return bytes_registered; }
bool hides_from_forks() { return hidden_from_forks; }
abi::AddressVector last_path() { return path; }
std::uint64_t blueflames() { return taken_whole; }
std::uint64_t fetched() { return taken_from_queue; }
Queues queues(abi::QueuePair* pair) {
  const rdma::QueuePair& soft = static_cast<FakePair*>(pair)->soft;
  return {soft.send, soft.completions};
}

}  // namespace fake_mlx5

#pragma GCC visibility push(default)
extern "C" {

int ibv_fork_init() {
  hidden_from_forks = true;
  return 0;
}

abi::Device** ibv_get_device_list(int* count) {
  static abi::Device only;
  *count = 1;
  return new abi::Device*[2]{&only, nullptr};
}
void ibv_free_device_list(abi::Device** list) { delete[] list; }
const char* ibv_get_device_name(abi::Device*) { return "mlx5_0"; }

abi::Context* ibv_open_device(abi::Device* device) {
  const std::lock_guard lock(mutex);
  ++alive;
  auto* const context = new FakeContext{};
  context->device = device;
  rdma::SoftHabits habits;
  habits.drops_blueflame = fake_mlx5::settings().drops_blueflame;
  context->nic = std::make_unique<rdma::SoftNic>(habits);
  return context;
}
int ibv_close_device(abi::Context* context) {
  const std::lock_guard lock(mutex);
  --alive;
  delete &of(context);
  return 0;
}

int ibv_query_port(abi::Context*, std::uint8_t port, abi::PortAttributes* attributes) {
  if (port != 1) return EINVAL;
  if (fake_mlx5::settings().port_is_up) attributes->state = abi::kPortActive;
  attributes->active_mtu = 5;
  attributes->max_message_bytes = 1u << 30;
  attributes->lid = 7;
  attributes->link_layer = 1;  // InfiniBand: addressed by LID
  attributes->flags = fake_mlx5::settings().port_flags;
  return 0;
}
std::ptrdiff_t _ibv_query_gid_table(abi::Context*, abi::GidEntry* entries, std::size_t, std::uint32_t,
                                    std::size_t) {
  entries[0] = {{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}}, 0, 1, 0, 0};
  return 1;
}

abi::ProtectionDomain* ibv_alloc_pd(abi::Context* context) {
  const std::lock_guard lock(mutex);
  ++alive;
  return new abi::ProtectionDomain{context, 0};
}
int ibv_dealloc_pd(abi::ProtectionDomain* domain) {
  const std::lock_guard lock(mutex);
  --alive;
  offered.erase(domain);
  delete domain;
  return 0;
}

abi::MemoryRegion* ibv_reg_mr(abi::ProtectionDomain* domain, void* address, std::size_t bytes, int access) {
  if (!fake_mlx5::settings().takes_device_memory) {
    errno = EFAULT;  // as for an address that is no memory of the host
    return nullptr;
  }
  return registered(domain, address, bytes, access);
}
// The address that the file is to be known by is where the test has mapped it.
abi::MemoryRegion* ibv_reg_dmabuf_mr(abi::ProtectionDomain* domain, std::uint64_t, std::size_t bytes,
                                     std::uint64_t address, int descriptor, int access) {
  if (!fake_mlx5::settings().takes_device_memory || descriptor < 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return registered(domain, reinterpret_cast<void*>(address), bytes, access);
}
int ibv_dereg_mr(abi::MemoryRegion* region) {
  const std::lock_guard lock(mutex);
  --alive;
  bytes_registered -= region->length;
  advise(region->address, region->length, MADV_DOFORK);
  of(region->context).nic->deregister(region->lkey);
  delete region;
  return 0;
}

abi::CompletionQueue* ibv_create_cq(abi::Context* context, int entries, void*, void*, int) {
  const std::lock_guard lock(mutex);
  ++alive;
  return new abi::CompletionQueue{context, nullptr, nullptr, 0, entries};
}
int ibv_destroy_cq(abi::CompletionQueue* queue) {
  const std::lock_guard lock(mutex);
  --alive;
  delete queue;
  return 0;
}

abi::QueuePair* ibv_create_qp(abi::ProtectionDomain* domain, abi::QueuePairInit* init) {
  const std::lock_guard lock(mutex);
  const std::uint32_t each = rdma::blocks_of(rdma::inline_segments(init->capacity.inline_bytes));
  auto* const pair = new FakePair{};
  pair->context = domain->context;
  pair->domain = domain;
  pair->blocks = init->capacity.send_requests * each;
  pair->number = pair->called = next_number++;
  pairs[pair->called] = pair;
  ++alive;
  return pair;
}
int ibv_modify_qp(abi::QueuePair* pair, abi::QueuePairAttributes* attributes, int) {
  const std::lock_guard lock(mutex);
  if (attributes->state != abi::kStateReadyToReceive) return 0;
  path = attributes->path;
  return connect(*static_cast<FakePair*>(pair), attributes->destination);
}
int ibv_destroy_qp(abi::QueuePair* pair) {
  const std::lock_guard lock(mutex);
  auto* const ours = static_cast<FakePair*>(pair);
  if (ours->soft.owner) {
    const rdma::SoftCounts& counts = of(pair->context).nic->queue(pair->number)->counts();
    taken_whole += counts.blueflames;
    taken_from_queue += counts.fetched;
  }
  --alive;
  pairs.erase(ours->called);
  delete ours;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
