#include "core/prompt_scheduler.hpp"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

namespace lamina {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

PromptScheduler::PromptScheduler(RequestTable requests, SchedulerLimits limits, PromptLimits prompts,
                                 Scheduler::Priority priority)
    : requests_(requests),
      limits_(limits),
      prompts_(prompts),
      priority_(std::move(priority)),
      pools_(static_cast<std::size_t>(limits.pools), BlockPool(limits.tokens_per_pool / limits.block_tokens)),
      prefix_blocks_(ceil_div(requests.prefix_block_tokens, limits.block_tokens)),
      request_blocks_(ceil_div(limits.request_tokens, limits.block_tokens)),
      lanes_(static_cast<std::size_t>(limits.batches)) {
  if (requests_.prefix_block_tokens < 1) throw std::invalid_argument("a prefix block has at least one token");
  for (Lane& lane : lanes_) {
    lane.kv.assign(pools_.size(), 0);
    lane.members_of.assign(pools_.size(), 0);
    if (limits.lengths) lane.lengths.resize(pools_.size());
    lane.phases.assign(pools_.size(),
                       std::vector<std::int64_t>(static_cast<std::size_t>(limits.block_tokens)));
  }
  rebind(requests);
  std::int32_t longest = 1;
  for (const std::int32_t output : requests.output) longest = std::max(longest, output);
  widen_ring(longest);
}

void PromptScheduler::rebind(RequestTable requests) {
  requests_ = requests;
  const std::size_t rows = requests_.prompt.size();
  states_.resize(rows, RequestState::kNew);
  pool_.resize(rows);
  batch_.resize(rows);
  next_leaving_.resize(rows);
  joined_.resize(rows, -1);
  produced_.resize(rows);
  computed_.resize(rows);
  shared_.resize(rows);
}

void PromptScheduler::widen_ring(std::int32_t longest) {
  widen_rings(lanes_, ring_mask_, longest, [&](Index request) { return leaves_at(request); });
}

bool PromptScheduler::fits(const RequestTable& requests, Index request) const {
  const std::int64_t last = requests.prompt[request] + requests.output[request];
  return blocks_for(requests, request, last) + request_blocks_ <= pools_.front().capacity();
}

RequestState PromptScheduler::enqueue(Index request) {
  if (!fits(requests_, request)) return states_[request] = RequestState::kRejected;
  widen_ring(requests_.output[request]);
  queue_.push(priority_ ? priority_(request) : request, request);
  return states_[request] = RequestState::kWaiting;
}

const std::vector<PromptScheduler::Index>& PromptScheduler::finish(int batch) {
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  ++lane.iteration;
  for (std::size_t pool = 0; pool < lane.kv.size(); ++pool) lane.kv[pool] += lane.members_of[pool];
  for (const Index request : lane.joining) {
    const std::size_t pool = pool_[request];
    ++lane.members;
    ++lane.members_of[pool];
    lane.kv[pool] += computed_[request];
    if (limits_.lengths) lane.lengths[pool].join(computed_[request], lane.iteration);
    if (grows()) {
      ++lane.phases[pool][phase_of(request)];
      lane.youngest.push_back({request, joined_[request]});
    }
    Index& chain = lane.leaving[static_cast<std::size_t>(leaves_at(request)) & ring_mask_];
    next_leaving_[request] = chain;
    chain = request;
  }
  lane.joining.clear();
  finished_.clear();
  Index& chain = lane.leaving[static_cast<std::size_t>(lane.iteration) & ring_mask_];
  for (Index request = std::exchange(chain, kNone); request != kNone; request = next_leaving_[request]) {
    computed_[request] = static_cast<std::int32_t>(computed(lane, request));
    leave(lane, request);
    states_[request] = RequestState::kDone;
    if (prompts_.holds) --running_;
    finished_.push_back(request);
  }
  // A chain has the last to join first; memory comes back in the order of the batch.
  std::ranges::reverse(finished_);
  auto& ended = prompts_.holds ? lane.held : lane.ended;
  ended.insert(ended.end(), finished_.begin(), finished_.end());
  return finished_;
}

const PromptScheduler::Change& PromptScheduler::advance(int batch) {
  change_.preempted.clear();
  change_.sent_back.clear();
  change_.admitted.clear();
  change_.joined.clear();
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  release(lane.ended_before);
  if (prompts_.lags) {
    std::swap(lane.ended, lane.ended_before);
  } else {
    release(lane.ended);
  }
  if (grows() && lane.members > 0) make_room(lane);
  lane.step.chunks.clear();
  lane.step.decoding = lane.step.rows = lane.members;
  std::int64_t budget = prompts_.budget - lane.members;
  if (lane.prompt != kNone && !compute(lane, lane.prompt, budget)) preempt(lane, pool_[lane.prompt]);
  if (change_.preempted.empty() && change_.sent_back.empty()) admit(lane, budget);
  sweep(lane);
  return change_;
}

std::int64_t PromptScheduler::steady(int batch, std::int64_t most) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  // Who is not a member is in a prompt, or holds memory that comes back.
  if (limits_.pools > 1 || !queue_.empty() || lane.members == 0 || lane.members != running_) return 0;
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  if (grows()) most = std::min(most, (pools_.front().free() / lane.members - 1) * block);
  return nobody_leaves(lane, ring_mask_, most);
}

void PromptScheduler::skip(int batch, std::int64_t boundaries) {
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  if (grows()) pools_.front().take(blocks_to_come(lane.phases[0], lane.members, lane.iteration, boundaries));
  lane.kv[0] += boundaries * lane.members;
  lane.iteration += boundaries;
}

std::int64_t PromptScheduler::size(int batch) const {
  return lane(batch).step.decoding + static_cast<std::int64_t>(lane(batch).joining.size());
}

std::int64_t PromptScheduler::sequences(int batch) const {
  return lane(batch).step.decoding + static_cast<std::int64_t>(lane(batch).step.chunks.size());
}

std::int64_t PromptScheduler::largest_kv(int batch) const { return std::ranges::max(lane(batch).kv); }

std::int64_t PromptScheduler::kv(int batch) const {
  std::int64_t tokens = 0;
  for (const std::int64_t pool : lane(batch).kv) tokens += pool;
  return tokens;
}

Attended PromptScheduler::attended(int batch, int pool) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  return attended_of(lane, lane.members_of, static_cast<std::size_t>(pool));
}

std::int64_t PromptScheduler::used() const {
  std::int64_t blocks = 0;
  for (const BlockPool& pool : pools_) blocks += pool.capacity() - pool.free();
  return blocks * limits_.block_tokens;
}

std::int64_t PromptScheduler::fullest_pool() const {
  std::int64_t blocks = 0;
  for (const BlockPool& pool : pools_) blocks = std::max(blocks, pool.capacity() - pool.free());
  return blocks * limits_.block_tokens;
}

// Tokens of it whose KV is there, between two iterations of its batch.
std::int64_t PromptScheduler::computed(const Lane& lane, Index request) const {
  return known(request) + lane.iteration - joined_[request] - 1;
}

// Prefix blocks that its prompt fills: a part of one is its own.
std::int64_t PromptScheduler::shareable(const RequestTable& requests, Index request) {
  const auto ids = static_cast<std::int64_t>(requests.prefix(request).size());
  return std::min<std::int64_t>(ids, requests.prompt[request] / requests.prefix_block_tokens);
}

std::int64_t PromptScheduler::blocks_for(const RequestTable& requests, Index request,
                                         std::int64_t tokens) const {
  const std::int64_t shared = std::min(shareable(requests, request), tokens / requests.prefix_block_tokens);
  return shared * prefix_blocks_ +
         ceil_div(tokens - shared * requests.prefix_block_tokens, limits_.block_tokens);
}

// What it holds beside prefix blocks.
std::int64_t PromptScheduler::own_blocks(Index request, std::int64_t computed) const {
  return blocks_for(request, grows() ? computed : final_tokens(request)) - shared_[request] * prefix_blocks_ +
         request_blocks_;
}

// A member needs a block when its own tokens fill those that it has.
std::size_t PromptScheduler::phase_of(Index request) const {
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  const std::int64_t own = known(request) - std::int64_t{shared_[request]} * requests_.prefix_block_tokens;
  return static_cast<std::size_t>(((own - joined_[request] - 1) % block + block) % block);
}

// Their seats and memory come back: first what was written last.
void PromptScheduler::release(std::vector<Index>& ended) {
  for (const Index request : ended) {
    free(request);
    --running_;
  }
  ended.clear();
}

void PromptScheduler::release(Index request) {
  std::erase(lanes_[batch_[request]].held, request);
  free(request);
}

void PromptScheduler::free(Index request) {
  BlockPool& pool = pool_of(request);
  pool.give(own_blocks(request, computed_[request]));
  const auto prefix = requests_.prefix(request);
  for (std::int32_t i = shared_[request]; i-- > 0;) pool.drop(prefix[static_cast<std::size_t>(i)]);
}

void PromptScheduler::make_room(Lane& lane) {
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  const std::size_t phase = full_phase(lane.iteration, block);
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const std::int64_t& full = lane.phases[pool][phase];
    while (pools_[pool].free() < full) preempt(lane, static_cast<int>(pool));
    pools_[pool].take(full);
  }
}

void PromptScheduler::preempt(Lane& lane, int pool) {
  const Index victim = youngest_of(lane, pool);
  if (victim == lane.prompt) {
    lane.prompt = kNone;
    queue_again(victim, computed_[victim]);
    change_.sent_back.push_back(victim);
    return;
  }
  Index* link = &lane.leaving[static_cast<std::size_t>(leaves_at(victim)) & ring_mask_];
  while (*link != victim) link = &next_leaving_[*link];
  *link = next_leaving_[victim];
  const std::int64_t there = computed(lane, victim);
  leave(lane, victim);
  // Its memory is given back as it was when it had made these tokens.
  const auto made = static_cast<std::int32_t>(lane.iteration - joined_[victim]);
  queue_again(victim, there);
  produced_[victim] += made;
  change_.preempted.push_back(victim);
}

PromptScheduler::Index PromptScheduler::youngest_of(Lane& lane, int pool) {
  if (lane.prompt != kNone && pool_[lane.prompt] == pool) return lane.prompt;
  while (!lane.youngest.empty() && gone(lane, lane.youngest.back())) lane.youngest.pop_back();
  auto found = std::find_if(lane.youngest.rbegin(), lane.youngest.rend(), [&](const Stay& stay) {
    return !gone(lane, stay) && pool_[stay.request] == pool;
  });
  const Index victim = found->request;
  lane.youngest.erase(std::next(found).base());
  return victim;
}

// What is computed anew may be in memory still when its turn comes: full blocks last until they are taken.
void PromptScheduler::queue_again(Index request, std::int64_t computed) {
  BlockPool& pool = pool_of(request);
  const std::int64_t own = own_blocks(request, computed);
  std::int64_t full = 0;
  if (shared_[request] == shareable(request)) {
    full = (computed - std::int64_t{shared_[request]} * requests_.prefix_block_tokens) / limits_.block_tokens;
  }
  pool.give(own - full);
  pool.keep(request, full);
  const auto prefix = requests_.prefix(request);
  for (; shared_[request] > 0; --shared_[request])
    pool.drop(prefix[static_cast<std::size_t>(shared_[request] - 1)]);
  joined_[request] = -1;
  states_[request] = RequestState::kWaiting;
  --running_;
  queue_.push(priority_ ? priority_(request) : request, request);
}

// The next chunk of a prompt, as far as the budget goes; false where there is no memory for it.
bool PromptScheduler::compute(Lane& lane, Index request, std::int64_t& budget) {
  BlockPool& pool = pool_of(request);
  const std::int64_t before = computed_[request];
  const std::int64_t tokens = std::min(known(request) - before, budget);
  if (tokens <= 0) return true;
  if (grows()) {
    const std::int64_t more = blocks_for(request, before + tokens) - blocks_for(request, before);
    if (more > pool.free()) return false;
    pool.take(more);
  }
  lane.step.chunks.push_back({request, tokens, before});
  lane.step.rows += tokens;
  budget -= tokens;
  computed_[request] += static_cast<std::int32_t>(tokens);
  const auto prefix = requests_.prefix(request);
  const std::int64_t filled =
      std::min<std::int64_t>(shareable(request), computed_[request] / requests_.prefix_block_tokens);
  for (; shared_[request] < filled; ++shared_[request])
    pool.add(prefix[static_cast<std::size_t>(shared_[request])], prefix_blocks_);
  lane.prompt = request;
  if (computed_[request] == known(request)) {
    lane.prompt = kNone;
    joined_[request] = lane.iteration;
    lane.joining.push_back(request);
    change_.joined.push_back(request);
  }
  return true;
}

void PromptScheduler::admit(Lane& lane, std::int64_t& budget) {
  const std::int64_t seats = ceil_div(limits_.max_requests, limits_.batches);
  while (budget > 0 && !queue_.empty() && lane.requests() < seats && running_ < limits_.max_requests) {
    const Index request = queue_.front().second;
    if (!try_admit(request)) return;
    queue_.pop();
    batch_[request] = static_cast<std::uint16_t>(&lane - lanes_.data());
    change_.admitted.push_back(request);
    compute(lane, request, budget);
  }
}

// It goes into the pool with the most room if that has room for all of it, and takes what is there already.
bool PromptScheduler::try_admit(Index request) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < pools_.size(); ++i) {
    if (pools_[i].free() > pools_[best].free()) best = i;
  }
  BlockPool& pool = pools_[best];
  const auto prefix = requests_.prefix(request);
  // Its last token is computed, whatever is there: what comes after it is made from it.
  const std::int64_t most =
      std::min(shareable(request), (known(request) - 1) / requests_.prefix_block_tokens);
  std::int64_t hits = 0;
  std::int64_t from_line = 0;
  for (; hits < most && pool.has(prefix[static_cast<std::size_t>(hits)]); ++hits)
    from_line += pool.held(prefix[static_cast<std::size_t>(hits)]) ? 0 : prefix_blocks_;
  const bool kept = hits == shareable(request) && pool_[request] == best;
  const std::int64_t own = kept ? pool.kept(request) : 0;
  const std::int64_t all = blocks_for(request, grows() ? known(request) : final_tokens(request));
  const std::int64_t more = all - hits * prefix_blocks_ - own;
  if (more + request_blocks_ + from_line + own > pool.free()) return false;
  if (kept) {
    pool.take_kept(request);
  } else {
    pool_of(request).forget(request);
  }
  pool_[request] = static_cast<std::uint16_t>(best);
  for (std::int64_t i = 0; i < hits; ++i) pool.hold(prefix[static_cast<std::size_t>(i)]);
  shared_[request] = static_cast<std::int32_t>(hits);
  computed_[request] =
      static_cast<std::int32_t>(hits * requests_.prefix_block_tokens + own * limits_.block_tokens);
  pool.take(request_blocks_ + (grows() ? 0 : more));
  states_[request] = RequestState::kRunning;
  ++running_;
  return true;
}

// A member goes; its row in the chain of leavers and its memory are the caller's business.
void PromptScheduler::leave(Lane& lane, Index request) {
  const std::size_t pool = pool_[request];
  --lane.members;
  --lane.members_of[pool];
  const std::int64_t tokens = computed(lane, request);
  lane.kv[pool] -= tokens;
  if (limits_.lengths) lane.lengths[pool].leave(tokens, lane.iteration);
  if (grows()) --lane.phases[pool][phase_of(request)];
}

bool PromptScheduler::gone(const Lane& lane, const Stay& stay) const {
  return states_[stay.request] != RequestState::kRunning || joined_[stay.request] != stay.joined ||
         &lanes_[batch_[stay.request]] != &lane;
}

void PromptScheduler::sweep(Lane& lane) {
  if (static_cast<std::int64_t>(lane.youngest.size()) <= 2 * lane.members + 1024) return;
  std::erase_if(lane.youngest, [&](const Stay& stay) { return gone(lane, stay); });
}

void PromptScheduler::check_integrity() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("prompt scheduler: ") + what);
  };
  std::vector<std::int64_t> own(pools_.size());
  std::vector<std::unordered_set<std::int64_t>> held(pools_.size());
  std::int64_t running = 0;
  const auto count = [&](Index request, std::int64_t computed) {
    own[pool_[request]] += own_blocks(request, computed);
    for (const std::int64_t id : requests_.prefix(request).first(static_cast<std::size_t>(shared_[request])))
      held[pool_[request]].insert(id);
    ++running;
  };
  std::vector<std::int64_t> members(lanes_.size());
  std::vector<std::vector<std::int64_t>> kv(lanes_.size(), std::vector<std::int64_t>(pools_.size()));
  for (std::size_t row = 0; row < states_.size(); ++row) {
    const auto request = static_cast<Index>(row);
    if (states_[row] != RequestState::kRunning) continue;
    const Lane& lane = lanes_[batch_[row]];
    if (request == lane.prompt || std::ranges::find(lane.joining, request) != lane.joining.end()) {
      count(request, computed_[row]);
      continue;
    }
    const std::int64_t there = computed(lane, request);
    expect(there < final_tokens(request) - 1, "a request runs beyond its last token");
    ++members[batch_[row]];
    kv[batch_[row]][pool_[row]] += there;
    count(request, there + 1);  // its next token is being computed
  }
  for (std::size_t j = 0; j < lanes_.size(); ++j) {
    const Lane& lane = lanes_[j];
    for (const auto* ended : {&lane.ended, &lane.ended_before, &lane.held})
      for (const Index request : *ended) count(request, computed_[request]);
    running -= static_cast<std::int64_t>(lane.held.size());
    expect(members[j] == lane.members, "a batch's members are counted wrong");
    expect(kv[j] == lane.kv, "a batch's KV tokens are wrong");
    expect(lane.step.rows <= prompts_.budget, "a batch computes more than its budget");
  }
  expect(running == running_, "the number of running requests is wrong");
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    pools_[pool].check_integrity();
    const auto shared = static_cast<std::int64_t>(held[pool].size()) * prefix_blocks_;
    expect(pools_[pool].capacity() - pools_[pool].free() == own[pool] + shared, "a pool's books are wrong");
    for (const std::int64_t id : held[pool])
      expect(pools_[pool].held(id), "a prefix block that is held is not there");
  }
}

}  // namespace lamina
