#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace lamina {

// What the lanes of both schedulers have in common. Requests that leave at the same iteration form a chain; a
// ring over iterations has the first of each.

inline constexpr std::uint32_t kNoRequest = UINT32_MAX;

// So that a request may leave as many iterations ahead; `mask` is the rings' size less one.
template <typename Lane, typename LeavesAt>
void widen_rings(std::vector<Lane>& lanes, std::size_t& mask, std::int32_t longest, LeavesAt leaves_at) {
  const std::size_t ring = std::bit_ceil(static_cast<std::size_t>(longest) + 1);
  if (ring <= mask + 1) return;
  mask = ring - 1;
  for (Lane& lane : lanes) {
    std::vector<std::uint32_t> leaving(ring, kNoRequest);
    for (const std::uint32_t chain : lane.leaving) {
      if (chain != kNoRequest) leaving[static_cast<std::size_t>(leaves_at(chain)) & mask] = chain;
    }
    lane.leaving = std::move(leaving);
  }
}

// For how many iterations from the next one on, of no more than so many, nobody leaves.
template <typename Lane>
std::int64_t nobody_leaves(const Lane& lane, std::size_t mask, std::int64_t most) {
  std::int64_t iterations = 0;
  while (iterations < most &&
         lane.leaving[static_cast<std::size_t>(lane.iteration + iterations + 1) & mask] == kNoRequest)
    ++iterations;
  return iterations;
}

// The phase of members that need another block at an iteration.
inline std::size_t full_phase(std::int64_t iteration, std::int64_t block) {
  return static_cast<std::size_t>((-iteration % block + block) % block);
}

// Blocks that so many members, in these phases, need in as many iterations after this one.
inline std::int64_t blocks_to_come(std::span<const std::int64_t> phases, std::int64_t members,
                                   std::int64_t iteration, std::int64_t iterations) {
  const auto block = static_cast<std::int64_t>(phases.size());
  std::int64_t blocks = iterations / block * members;
  for (std::int64_t i = 1; i <= iterations % block; ++i) blocks += phases[full_phase(iteration + i, block)];
  return blocks;
}

// KV tokens that the members of a batch have in a pool. All grow by one an iteration, so that what each had
// when it came, less the iteration, stays as it is.
class Lengths {
public:
  void join(std::int64_t tokens, std::int64_t iteration) { offsets_.insert(tokens - iteration); }
  void leave(std::int64_t tokens, std::int64_t iteration) {
    offsets_.erase(offsets_.find(tokens - iteration));
  }
  // With somebody there.
  std::int64_t least(std::int64_t iteration) const { return *offsets_.begin() + iteration; }
  std::int64_t most(std::int64_t iteration) const { return *offsets_.rbegin() + iteration; }

private:
  std::multiset<std::int64_t> offsets_;
};

// Requests that decode in a pool, and the KV tokens that they attend to: in all, and the fewest and the most
// of one, where the scheduler was asked to know them.
struct Attended {
  std::int64_t requests = 0;
  std::int64_t kv = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
};

template <typename Lane>
Attended attended_of(const Lane& lane, const std::vector<std::int64_t>& members, std::size_t pool) {
  if (members[pool] == 0) return {};
  if (lane.lengths.empty()) return {members[pool], lane.kv[pool]};
  const Lengths& lengths = lane.lengths[pool];
  return {members[pool], lane.kv[pool], lengths.least(lane.iteration), lengths.most(lane.iteration)};
}

}  // namespace lamina
