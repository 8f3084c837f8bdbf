#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/request_queue.hpp"

namespace lamina {

enum class Admission {
  kReserve,  // a request enters when its final length fits
  kGrow,  // it enters when its prompt fits and takes more as it grows; the youngest makes room when none is
          // left
};

enum class RequestState : std::uint8_t { kNew, kWaiting, kAdmitted, kRunning, kDone, kRejected };

// What the scheduler knows of the requests: columns, owned by the caller, one row a request.
struct RequestTable {
  std::span<const std::int32_t> prompt;
  std::span<const std::int32_t> output;
  // Prefix blocks of row i: ids[offsets[i]:offsets[i + 1]]. Empty when prefixes are not shared.
  std::span<const std::int64_t> prefix_offsets;
  std::span<const std::int64_t> prefix_ids;
  int prefix_block_tokens = 512;
  // Sequences of a request that share its prompt and grow side by side, one token each an iteration: parallel
  // samples, beams. Empty when every request has one. More than one needs blocks of one token.
  std::span<const std::int32_t> width;

  std::int64_t width_of(std::size_t row) const { return width.empty() ? 1 : width[row]; }

  std::span<const std::int64_t> prefix(std::size_t row) const {
    if (prefix_offsets.empty()) return {};
    const auto begin = static_cast<std::size_t>(prefix_offsets[row]);
    return prefix_ids.subspan(begin, static_cast<std::size_t>(prefix_offsets[row + 1]) - begin);
  }
};

struct SchedulerLimits {
  int batches = 1;
  int pools = 1;
  std::int64_t tokens_per_pool = 0;
  int block_tokens = 1;
  Admission admission = Admission::kReserve;
  std::int64_t max_requests = 0;  // sequences running at once, all batches together
  bool staged = false;   // an admitted request joins its batch only after ready(): its KV comes meanwhile
  bool lengths = false;  // the least and the most KV of the members of a batch are known
  // Extra KV tokens charged per request (state that no attention reads), rounded up to blocks.
  std::int64_t request_tokens = 0;
  // Sequences that each batch should have: with fewer in all, fewer batches take turns.
  std::int64_t min_batch = 1;
};

// KV tokens that the members of a batch have in a pool. All grow by one an iteration, so that what each had
// when it joined, less the iteration, stays as it is.
class Lengths {
public:
  void join(std::int64_t tokens, std::int64_t iteration) { offsets_.insert(tokens - iteration); }
  void leave(std::int64_t tokens, std::int64_t iteration) {
    offsets_.erase(offsets_.find(tokens - iteration));
  }
  // Only of a pool with members.
  std::int64_t least(std::int64_t iteration) const { return *offsets_.begin() + iteration; }
  std::int64_t most(std::int64_t iteration) const { return *offsets_.rbegin() + iteration; }

private:
  std::multiset<std::int64_t> offsets_;
};

// Requests that decode in a pool, and the KV tokens that they attend to: in all, and the fewest and the most
// of one where `SchedulerLimits::lengths` is set.
struct Attended {
  std::int64_t requests = 0;
  std::int64_t kv = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// A batch, as far as both schedulers have the same: its members are the sequences that decode. Those that
// leave at the same iteration form a chain that starts in `leaving`.
struct BatchMembers {
  using Index = RequestQueue::Index;

  // A request's time in a batch, distinguished from its row's other times by when it began.
  struct Stay {
    Index request;
    std::int64_t joined;
  };

  std::int64_t iteration = 0;
  std::int64_t members = 0;
  std::vector<std::int64_t> members_of;           // per pool
  std::vector<std::int64_t> kv;                   // per pool: tokens of its members
  std::vector<std::int64_t> arriving_kv;          // per pool: of those admitted that will join
  std::vector<Lengths> lengths;                   // per pool, with `SchedulerLimits::lengths`
  std::vector<std::vector<std::int64_t>> phases;  // per pool: members by (own tokens - iteration) mod block
  std::vector<Index> leaving;                     // ring over iterations
  std::vector<Index> joining;
  std::vector<Stay> youngest;  // growing members in order of joining; those that left are skipped
};

// The part of continuous batching that both schedulers share: the queue, and the members of batches.
// `Self` is the scheduler, which has fits(), preempt(batch, pool), own_tokens_at_join(request), and of a pool
// free_blocks(), has_blocks() and take_blocks(); `Batch` derives from BatchMembers.
template <typename Self, typename Batch>
class Batching {
public:
  using Index = RequestQueue::Index;
  // Smaller goes first. Called once each time a request enters the queue.
  using Priority = std::function<std::int64_t(Index)>;

  // The request arrives: it waits from now on, or is rejected because it could never fit.
  // Not inlined, nor is steady(): the simulator's loop calls both seldom, and is slower with them inside.
  [[gnu::noinline]] RequestState enqueue(Index request) {
    produced_[request] = 0;
    if (!self().fits(requests_, request)) return states_[request] = RequestState::kRejected;
    widen_rings(requests_.output[request]);
    wait(request);
    return RequestState::kWaiting;
  }

  // For how many boundaries, of no more than `most`, the batch goes on as it is: no request waits, joins or
  // leaves, and all of it is in one pool that has room.
  [[gnu::noinline]] std::int64_t steady(int batch, std::int64_t most) const {
    const Batch& its = at(batch);
    if (limits_.pools > 1 || !queue_.empty() || its.members == 0 || its.members != running_) return 0;
    // Over n iterations a member needs at most ceil(n / block) new blocks.
    if (grows()) most = std::min(most, (self().free_blocks(0) / its.members - 1) * limits_.block_tokens);
    std::int64_t iterations = 0;
    while (iterations < most && its.leaving[slot_of(its.iteration + iterations + 1)] == kNone) ++iterations;
    return iterations;
  }

  // Goes on over that many boundaries at once.
  void skip(int batch, std::int64_t boundaries) {
    Batch& its = at(batch);
    if (grows()) {
      const auto block = static_cast<std::int64_t>(limits_.block_tokens);
      std::int64_t blocks = boundaries / block * its.members;
      for (std::int64_t i = 1; i <= boundaries % block; ++i)
        blocks += its.phases[0][full_phase(its.iteration + i)];
      self().take_blocks(0, blocks);
    }
    its.kv[0] += boundaries * its.members;
    its.iteration += boundaries;
  }

  // KV tokens that the batch's members read in the next iteration, in the pool that holds most of them and in
  // all.
  std::int64_t largest_kv(int batch) const {
    return *std::max_element(at(batch).kv.begin(), at(batch).kv.end());
  }
  std::int64_t kv(int batch) const {
    std::int64_t tokens = 0;
    for (const std::int64_t pool : at(batch).kv) tokens += pool;
    return tokens;
  }
  Attended attended(int batch, int pool) const {
    const Batch& its = at(batch);
    const auto p = static_cast<std::size_t>(pool);
    if (its.members_of[p] == 0) return {};
    if (its.lengths.empty()) return {its.members_of[p], its.kv[p]};
    const Lengths& lengths = its.lengths[p];
    return {its.members_of[p], its.kv[p], lengths.least(its.iteration), lengths.most(its.iteration)};
  }
  std::int64_t iterations(int batch) const { return at(batch).iteration; }

  int batches() const { return limits_.batches; }
  int pools_of_kv() const { return limits_.pools; }
  std::size_t waiting() const { return queue_.size(); }
  std::int64_t running() const { return running_; }  // sequences, admitted ones included
  std::size_t requests() const { return states_.size(); }
  RequestState state(Index request) const { return states_[request]; }
  // The pool of its KV, and the batch that it is in or will join, if it was ever admitted.
  int pool(Index request) const { return pool_[request]; }
  int batch(Index request) const { return batch_[request]; }
  std::int32_t produced(Index request) const { return produced_[request]; }

protected:
  static constexpr Index kNone = UINT32_MAX;

  Batching(RequestTable requests, SchedulerLimits limits, Priority priority)
      : limits_(limits), priority_(std::move(priority)), batches_(static_cast<std::size_t>(limits.batches)) {
    const auto pools = static_cast<std::size_t>(limits.pools);
    for (Batch& batch : batches_) {
      batch.kv.assign(pools, 0);
      batch.arriving_kv.assign(pools, 0);
      batch.members_of.assign(pools, 0);
      if (limits.lengths) batch.lengths.resize(pools);
      batch.phases.assign(pools, std::vector<std::int64_t>(static_cast<std::size_t>(limits.block_tokens)));
    }
    bind(requests);
    std::int32_t longest = 1;
    for (const std::int32_t output : requests.output) longest = std::max(longest, output);
    widen_rings(longest);
  }

  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }
  Batch& at(int batch) { return batches_[static_cast<std::size_t>(batch)]; }
  const Batch& at(int batch) const { return batches_[static_cast<std::size_t>(batch)]; }
  bool grows() const { return limits_.admission == Admission::kGrow; }

  void bind(RequestTable requests) {
    requests_ = requests;
    const std::size_t rows = requests_.prompt.size();
    states_.resize(rows, RequestState::kNew);
    pool_.resize(rows);
    batch_.resize(rows);
    next_leaving_.resize(rows);
    joined_.resize(rows, -1);
    produced_.resize(rows);
  }

  void wait(Index request) {
    queue_.push(priority_ ? priority_(request) : request, request);
    states_[request] = RequestState::kWaiting;
  }

  // Where a request that takes so many blocks is stored: of the pools that have room, the one with the fewest
  // tokens of its batch, as the fullest decides how long attention takes; of equal ones the one with the most
  // room, then the first. With one batch, and where none has room (some may share blocks), the roomiest.
  int pool_for(const Batch& batch, std::int64_t blocks) const {
    const auto room = [&](int pool) { return self().free_blocks(pool); };
    const auto tokens = [&](int pool) {
      const auto p = static_cast<std::size_t>(pool);
      return batch.kv[p] + batch.arriving_kv[p];
    };
    int best = 0;
    for (int pool = 1; pool < limits_.pools; ++pool) {
      if (room(pool) > room(best)) best = pool;
    }
    if (limits_.batches == 1 || room(best) < blocks) return best;
    for (int pool = 0; pool < limits_.pools; ++pool) {
      const bool emptier = tokens(pool) < tokens(best);
      const bool roomier = tokens(pool) == tokens(best) && room(pool) > room(best);
      if (room(pool) >= blocks && (emptier || roomier)) best = pool;
    }
    return best;
  }

  // The batch has run an iteration: each member has one token more.
  void count_iteration(Batch& batch) {
    ++batch.iteration;
    for (std::size_t pool = 0; pool < batch.kv.size(); ++pool) batch.kv[pool] += batch.members_of[pool];
  }

  // Those that have all their tokens leave, into finished_, by `leave`.
  template <typename Leave>
  void finish_leaving(Batch& batch, Leave leave) {
    finished_.clear();
    Index& chain = batch.leaving[slot_of(batch.iteration)];
    for (Index request = std::exchange(chain, kNone); request != kNone; request = next_leaving_[request]) {
      leave(request);
      states_[request] = RequestState::kDone;
      finished_.push_back(request);
    }
  }

  // A request with so many KV tokens becomes a member, as of the iteration in joined_.
  void join_members(Batch& batch, Index request, std::int64_t width, std::int64_t tokens) {
    const std::size_t pool = pool_[request];
    batch.members += width;
    batch.members_of[pool] += width;
    batch.kv[pool] += tokens;
    batch.arriving_kv[pool] -= tokens;
    if (limits_.lengths) batch.lengths[pool].join(tokens, batch.iteration);
    Index& chain = batch.leaving[slot_of(leaves_at(request))];
    next_leaving_[request] = chain;
    chain = request;
    if (grows()) {
      batch.phases[pool][phase_of(request)] += width;
      batch.youngest.push_back({request, joined_[request]});
    }
  }

  // The reverse, but for its place in the chain of those that leave with it.
  void leave_members(Batch& batch, Index request, std::int64_t width, std::int64_t tokens) {
    const std::size_t pool = pool_[request];
    batch.members -= width;
    batch.members_of[pool] -= width;
    batch.kv[pool] -= tokens;
    if (limits_.lengths) batch.lengths[pool].leave(tokens, batch.iteration);
    if (grows()) batch.phases[pool][phase_of(request)] -= width;
  }

  void unchain(Batch& batch, Index request) {
    Index* link = &batch.leaving[slot_of(leaves_at(request))];
    while (*link != request) link = &next_leaving_[*link];
    *link = next_leaving_[request];
  }

  // Room for one more token of each member, in the pools where that takes a new block.
  void make_room(Batch& batch) {
    const std::size_t phase = full_phase(batch.iteration);
    for (int pool = 0; pool < limits_.pools; ++pool) {
      const std::int64_t& full = batch.phases[static_cast<std::size_t>(pool)][phase];
      while (!self().has_blocks(pool, full)) self().preempt(batch, pool);
      self().take_blocks(pool, full);
    }
  }

  // Takes the youngest member in a pool off the list; there has to be one.
  Index take_youngest(Batch& batch, int pool) {
    auto& youngest = batch.youngest;
    while (!youngest.empty() && has_left(batch, youngest.back())) youngest.pop_back();
    const auto match = std::find_if(youngest.rbegin(), youngest.rend(), [&](const Stay& stay) {
      return !has_left(batch, stay) && pool_[stay.request] == pool;
    });
    const Index victim = match->request;
    youngest.erase(std::next(match).base());
    return victim;
  }

  // Removes those that left from the list of the youngest once they are the most.
  void sweep(Batch& batch) {
    if (static_cast<std::int64_t>(batch.youngest.size()) <= 2 * batch.members + 1024) return;
    std::erase_if(batch.youngest, [&](const Stay& stay) { return has_left(batch, stay); });
  }

  std::int64_t leaves_at(Index request) const {
    return joined_[request] + requests_.output[request] - produced_[request];
  }

  RequestTable requests_;
  const SchedulerLimits limits_;
  const Priority priority_;
  RequestQueue queue_;
  std::vector<Batch> batches_;
  std::int64_t running_ = 0;

  std::vector<RequestState> states_;
  std::vector<std::uint16_t> pool_;
  std::vector<std::uint16_t> batch_;
  std::vector<std::int64_t> joined_;    // the batch's iteration when it joined, or that ended its prompt
  std::vector<std::int32_t> produced_;  // tokens made before it was admitted last
  std::vector<Index> finished_;

private:
  using Stay = BatchMembers::Stay;

  // So that a request may leave as many iterations ahead.
  void widen_rings(std::int32_t longest) {
    const std::size_t ring = std::bit_ceil(static_cast<std::size_t>(longest) + 1);
    if (ring <= ring_mask_ + 1) return;
    ring_mask_ = ring - 1;
    for (Batch& batch : batches_) {
      std::vector<Index> leaving(ring, kNone);
      for (const Index chain : batch.leaving) {
        if (chain != kNone) leaving[slot_of(leaves_at(chain))] = chain;
      }
      batch.leaving = std::move(leaving);
    }
  }

  std::size_t slot_of(std::int64_t iteration) const {
    return static_cast<std::size_t>(iteration) & ring_mask_;
  }
  std::size_t modulo_block(std::int64_t tokens) const {
    const auto block = static_cast<std::int64_t>(limits_.block_tokens);
    return static_cast<std::size_t>((tokens % block + block) % block);
  }
  // A member needs a new block whenever (own tokens + iterations since it joined) is a multiple of the block.
  std::size_t phase_of(Index request) const {
    return modulo_block(self().own_tokens_at_join(request) - joined_[request]);
  }
  // The phase of members that need another block at an iteration.
  std::size_t full_phase(std::int64_t iteration) const { return modulo_block(-iteration); }
  bool has_left(const Batch& batch, const Stay& stay) const {
    return states_[stay.request] != RequestState::kRunning || joined_[stay.request] != stay.joined ||
           &batches_[batch_[stay.request]] != &batch;
  }

  std::vector<Index> next_leaving_;
  std::size_t ring_mask_ = 0;
};

}  // namespace lamina
