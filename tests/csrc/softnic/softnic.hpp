#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fhbn/rdma/mlx5_writer.hpp"
#include "softnic/soft_queue.hpp"

namespace lamina::fhbn::rdma {

// A thread that behaves towards queues, doorbells and registers as an mlx5 NIC does, so that the very code
// that would drive a NIC runs on any machine. A test bench: it says nothing about the speed of RDMA.
class SoftNic {
public:
  explicit SoftNic(const SoftHabits& habits = {});
  ~SoftNic();
  SoftNic(const SoftNic&) = delete;
  SoftNic& operator=(const SoftNic&) = delete;

  // Lets the NIC read memory, and the peer's NIC write there, by the key that comes back. `keep` is held
  // until the memory is registered no more. `known_as`: where requests have it, if that is not where it is
  // mapped here.
  LocalMemory register_memory(std::byte* memory, std::uint64_t bytes, std::shared_ptr<const void> keep,
                              const void* known_as = nullptr);
  void deregister(std::uint32_t key);

  // A queue pair that is connected to the peer whose memory this is. It ends with the last copy of what is
  // returned, which may outlive the NIC. `failed`: where the peer's softnic looks whether it has.
  QueuePair connect(std::uint32_t blocks, PeerMemory peer,
                    Failed failed = std::make_shared<std::uint32_t>(0));

  // The NIC's side of a queue pair: std::invalid_argument if it is gone.
  std::shared_ptr<SoftQueue> queue(std::uint32_t qpn) const;

private:
  struct Region {
    LocalMemory memory;
    std::uint64_t known_as;
    std::shared_ptr<const void> keep;
  };

  void run();
  bool work_on_all();
  const std::byte* find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const;
  // The thread lets others have the lock: they say that they want it.
  std::unique_lock<std::mutex> lock() const;

  SoftHabits habits_;
  mutable std::mutex mutex_;
  mutable std::atomic<int> others_ = 0;
  std::map<std::uint32_t, Region> regions_;
  std::vector<std::weak_ptr<SoftQueue>> queues_;
  std::uint32_t next_key_;
  std::uint32_t next_qpn_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
