#include "core/scheduler.hpp"

#include <algorithm>
#include <functional>
#include <ranges>
#include <stdexcept>
#include <utility>

namespace lamina {

Scheduler::Scheduler(RequestTable requests, SchedulerLimits limits, Priority priority)
    : requests_(requests),
      limits_(limits),
      priority_(std::move(priority)),
      pools_(limits.pools, limits.tokens_per_pool, limits.block_tokens),
      request_tokens_(pools_.rounded(limits.request_tokens)),
      lanes_(static_cast<std::size_t>(limits.batches)) {
  for (Lane& lane : lanes_) {
    lane.kv.assign(static_cast<std::size_t>(limits.pools), 0);
    lane.members.assign(lane.kv.size(), 0);
    if (limits.lengths) lane.lengths.resize(lane.kv.size());
    lane.phases.assign(lane.kv.size(),
                       std::vector<std::int64_t>(static_cast<std::size_t>(limits.block_tokens)));
  }
  rebind(requests);
  std::int32_t longest = 1;
  for (const std::int32_t output : requests.output) longest = std::max(longest, output);
  widen_ring(longest);
}

void Scheduler::rebind(RequestTable requests) {
  requests_ = requests;
  const std::size_t rows = requests_.prompt.size();
  states_.resize(rows, RequestState::kNew);
  pool_.resize(rows);
  batch_.resize(rows);
  next_leaving_.resize(rows);
  joined_.resize(rows);
  if (!produced_.empty()) produced_.resize(rows);
}

void Scheduler::widen_ring(std::int32_t longest) {
  widen_rings(lanes_, ring_mask_, longest, [&](Index request) { return leaves_at(request); });
}

bool Scheduler::fits(const RequestTable& requests, Index request) const {
  // With its last token, alone in a pool.
  const std::int64_t prompt = requests.prompt[request], width = requests.width_of(request);
  const auto ids = requests.prefix(request).size();
  const std::int64_t shared = static_cast<std::int64_t>(ids) * requests.prefix_block_tokens;
  const std::int64_t own = std::max<std::int64_t>(0, prompt - shared) + width * requests.output[request];
  const std::int64_t prefix = pools_.prefix_tokens_alone(ids, prompt, requests.prefix_block_tokens);
  return pools_.rounded(own) + prefix + request_tokens_ <= pools_.capacity() && width <= limits_.max_requests;
}

RequestState Scheduler::enqueue(Index request) {
  if (!produced_.empty()) produced_[request] = 0;
  if (!fits(requests_, request)) return states_[request] = RequestState::kRejected;
  widen_ring(requests_.output[request]);
  queue_.push(priority_ ? priority_(request) : request, request);
  return states_[request] = RequestState::kWaiting;
}

const std::vector<Scheduler::Index>& Scheduler::finish(int batch) {
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  ++lane.iteration;
  lane.midway = false;
  for (std::size_t pool = 0; pool < lane.kv.size(); ++pool) lane.kv[pool] += lane.members[pool];
  finished_.clear();
  Index& chain = lane.leaving[static_cast<std::size_t>(lane.iteration) & ring_mask_];
  for (Index request = std::exchange(chain, kNone); request != kNone; request = next_leaving_[request]) {
    leave(lane, request);
    states_[request] = RequestState::kDone;
    finished_.push_back(request);
  }
  return finished_;
}

void Scheduler::remove(Index request) {
  Lane& lane = lanes_[batch_[request]];
  switch (states_[request]) {
    case RequestState::kWaiting:
      queue_.erase(request);
      break;
    case RequestState::kAdmitted:
      // It holds what it was charged, as one that has just joined does.
      std::erase(lane.joining, request);
      lane.arriving -= requests_.width_of(request);
      give_back(request, charge(request));
      break;
    case RequestState::kRunning:
      unchain(lane, request);
      leave(lane, request);
      break;
    default:
      return;
  }
  states_[request] = RequestState::kDone;
}

const Scheduler::Change& Scheduler::advance(int batch) {
  change_.preempted.clear();
  change_.joined.clear();
  change_.admitted.clear();
  change_.recomputed_tokens = 0;
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  if (grows() && lane.size > 0) make_room(lane);
  admit();
  join(lane);
  lane.midway = true;
  return change_;
}

std::int64_t Scheduler::steady(int batch, std::int64_t most) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  if (limits_.pools > 1 || !queue_.empty() || lane.size == 0 || lane.size != running_) return 0;
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  // In so many boundaries each member needs no more blocks than one for each begun row of that many.
  if (grows()) most = std::min(most, (pools_.free(0) / block / lane.size - 1) * block);
  return nobody_leaves(lane, ring_mask_, most);
}

void Scheduler::skip(int batch, std::int64_t boundaries) {
  Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  if (grows()) {
    pools_.take(0,
                blocks_to_come(lane.phases[0], lane.size, lane.iteration, boundaries) * limits_.block_tokens);
  }
  lane.kv[0] += boundaries * lane.members[0];
  lane.iteration += boundaries;
}

void Scheduler::ready(Index request) {
  std::vector<Index>& joining = lanes_[batch_[request]].joining;
  if (!limits_.staged || states_[request] != RequestState::kAdmitted ||
      std::ranges::find(joining, request) != joining.end())
    throw std::invalid_argument("only a request that was admitted can get ready, and once");
  joining.push_back(request);
}

const Scheduler::Change& Scheduler::join(int batch) {
  join(lanes_[static_cast<std::size_t>(batch)]);
  return change_;
}

void Scheduler::unjoin(Index request) {
  Lane& lane = lanes_[batch_[request]];
  if (states_[request] == RequestState::kAdmitted && std::erase(lane.joining, request) > 0) return;
  if (!limits_.staged || states_[request] != RequestState::kRunning || joined_[request] != lane.iteration)
    throw std::invalid_argument(
        "only a request that is ready, or has joined an iteration under way, can leave");
  unchain(lane, request);
  part(lane, request);
  lane.arriving += requests_.width_of(request);
  states_[request] = RequestState::kAdmitted;
}

std::int64_t Scheduler::largest_kv(int batch) const { return std::ranges::max(lane(batch).kv); }

std::int64_t Scheduler::kv(int batch) const {
  std::int64_t tokens = 0;
  for (const std::int64_t pool : lane(batch).kv) tokens += pool;
  return tokens;
}

Attended Scheduler::attended(int batch, int pool) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(batch)];
  return attended_of(lane, lane.members, static_cast<std::size_t>(pool));
}

std::int64_t Scheduler::fullest_pool() const {
  std::int64_t fullest = 0;
  for (int pool = 0; pool < limits_.pools; ++pool) {
    std::int64_t read = 0;
    for (const Lane& lane : lanes_) {
      const auto p = static_cast<std::size_t>(pool);
      read += lane.kv[p] + lane.members[p] * request_tokens_;
    }
    // A shared prefix is read by several and written once.
    fullest = std::max(fullest, std::min(read, pools_.capacity() - pools_.free(pool)));
  }
  return fullest;
}

std::int32_t Scheduler::produced(Index request) const { return produced_.empty() ? 0 : produced_[request]; }

// Tokens outside of shared prefix blocks when the request joined last: what it alone is charged for.
std::int64_t Scheduler::own_tokens(Index request) const {
  const std::int64_t shared =
      static_cast<std::int64_t>(requests_.prefix(request).size()) * requests_.prefix_block_tokens;
  return std::max<std::int64_t>(0, requests_.prompt[request] - shared) +
         requests_.width_of(request) * produced(request);
}

// What a request takes of its pool when it is admitted, shared prefix blocks aside.
std::int64_t Scheduler::charge(Index request) const {
  const std::int64_t own = own_tokens(request);
  const std::int64_t to_come = grows() ? 1 : requests_.output[request] - produced(request);
  return pools_.rounded(own + requests_.width_of(request) * to_come) + request_tokens_;
}

// Room for one more token of each member, in the pools where that takes a new block.
void Scheduler::make_room(Lane& lane) {
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  const std::size_t phase = full_phase(lane.iteration, block);
  for (int pool = 0; pool < limits_.pools; ++pool) {
    const std::int64_t& full = lane.phases[static_cast<std::size_t>(pool)][phase];
    while (pools_.free(pool) < full * block) preempt(lane, youngest_of(lane, pool));
    pools_.take(pool, full * block);
  }
}

void Scheduler::preempt(Lane& lane, Index victim) {
  unchain(lane, victim);
  leave(lane, victim);
  if (produced_.empty()) produced_.resize(states_.size());
  produced_[victim] += static_cast<std::int32_t>(lane.iteration - joined_[victim]);
  states_[victim] = RequestState::kWaiting;
  queue_.push(priority_ ? priority_(victim) : victim, victim);
  change_.preempted.push_back(victim);
}

std::int64_t Scheduler::leaves_at(Index request) const {
  return joined_[request] + requests_.output[request] - produced(request);
}

// Out of the chain of those it would have left with.
void Scheduler::unchain(Lane& lane, Index request) {
  Index* link = &lane.leaving[static_cast<std::size_t>(leaves_at(request)) & ring_mask_];
  while (*link != request) link = &next_leaving_[*link];
  *link = next_leaving_[request];
}

void Scheduler::admit() {
  while (!queue_.empty() && try_admit(queue_.front().second)) queue_.pop();
}

// Room that admission leaves to those who are already growing: without it the newcomer is preempted again at
// once. vLLM leaves a hundredth too.
std::int64_t Scheduler::watermark() const { return grows() && running_ > 0 ? pools_.capacity() / 100 : 0; }

bool Scheduler::try_admit(Index request) {
  const std::int64_t width = requests_.width_of(request);
  if (running_ + width > limits_.max_requests) return false;
  const int pool = pools_.roomiest();
  const auto prefix = requests_.prefix(request);
  std::int64_t needed = charge(request);
  if (needed <= pools_.free(pool) && !prefix.empty()) {
    needed += pools_.missing(pool, prefix, requests_.prompt[request], requests_.prefix_block_tokens);
  }
  if (needed + watermark() > pools_.free(pool)) return false;
  pools_.take(pool, charge(request));
  if (!prefix.empty()) pools_.hold(pool, prefix, requests_.prompt[request], requests_.prefix_block_tokens);
  const std::size_t batch = batch_for(width);
  pool_[request] = static_cast<std::uint16_t>(pool);
  batch_[request] = static_cast<std::uint16_t>(batch);
  states_[request] = RequestState::kAdmitted;
  (limits_.staged ? change_.admitted : lanes_[batch].joining).push_back(request);
  lanes_[batch].arriving += width;
  running_ += width;
  return true;
}

// The batch with the fewest requests, so that all take about the same time; of as many batches as have enough
// of them each, the fullest ones, so that the others run empty where fewer come than leave.
std::size_t Scheduler::batch_for(std::int64_t width) const {
  const auto load = [&](std::size_t j) { return lanes_[j].size + lanes_[j].arriving; };
  const auto enough = static_cast<std::size_t>((running_ + width) / limits_.min_batch);
  const auto all = std::views::iota(std::size_t{0}, lanes_.size());
  // Of equal ones the first.
  if (enough >= lanes_.size()) return *std::ranges::min_element(all, {}, load);
  std::vector<std::size_t> open(lanes_.size());
  std::ranges::copy(all, open.begin());
  std::ranges::stable_sort(open, std::ranges::greater{}, load);
  open.resize(std::max<std::size_t>(1, enough));
  std::ranges::sort(open);
  return *std::ranges::min_element(open, {}, load);
}

void Scheduler::join(Lane& lane) {
  for (const Index request : lane.joining) {
    const std::size_t pool = pool_[request];
    const std::int64_t width = requests_.width_of(request);
    const std::int64_t tokens = requests_.prompt[request] + width * produced(request);
    lane.arriving -= width;
    lane.size += width;
    lane.members[pool] += width;
    lane.kv[pool] += tokens;
    if (limits_.lengths) lane.lengths[pool].join(tokens, lane.iteration);
    joined_[request] = lane.iteration;
    states_[request] = RequestState::kRunning;
    Index& chain = lane.leaving[static_cast<std::size_t>(leaves_at(request)) & ring_mask_];
    next_leaving_[request] = chain;
    chain = request;
    if (grows()) {
      lane.phases[pool][phase_of(request)] += width;
      lane.youngest.push_back({request, lane.iteration});
    }
    if (produced(request) > 0) change_.recomputed_tokens += tokens;
    change_.joined.push_back(request);
  }
  lane.joining.clear();
  sweep(lane);
}

// A running request is in its batch no more.
void Scheduler::part(Lane& lane, Index request) {
  const auto pool = static_cast<std::size_t>(pool_[request]);
  const std::int64_t width = requests_.width_of(request);
  const std::int64_t made = lane.iteration - joined_[request];
  lane.size -= width;
  lane.members[pool] -= width;
  const std::int64_t tokens = requests_.prompt[request] + width * (produced(request) + made);
  lane.kv[pool] -= tokens;
  if (limits_.lengths) lane.lengths[pool].leave(tokens, lane.iteration);
  if (grows()) lane.phases[pool][phase_of(request)] -= width;
}

// A running request goes; its row in the chain of leavers is the caller's business.
void Scheduler::leave(Lane& lane, Index request) {
  part(lane, request);
  const std::int64_t width = requests_.width_of(request);
  const std::int64_t made = lane.iteration - joined_[request];
  // In an iteration it has room for the tokens being made.
  const std::int64_t grown = own_tokens(request) + width * (made + (lane.midway ? 1 : 0));
  give_back(request, grows() ? pools_.rounded(grown) + request_tokens_ : charge(request));
}

void Scheduler::give_back(Index request, std::int64_t tokens) {
  const int pool = pool_[request];
  pools_.give(pool, tokens);
  const auto prefix = requests_.prefix(request);
  if (!prefix.empty()) pools_.drop(pool, prefix);
  running_ -= requests_.width_of(request);
}

bool Scheduler::gone(const Lane& lane, const Stay& stay) const {
  return states_[stay.request] != RequestState::kRunning || joined_[stay.request] != stay.joined ||
         &lanes_[static_cast<std::size_t>(batch_[stay.request])] != &lane;
}

// Those who left are still listed among the youngest; swept out when they are the most.
void Scheduler::sweep(Lane& lane) {
  if (static_cast<std::int64_t>(lane.youngest.size()) <= 2 * lane.size + 1024) return;
  std::erase_if(lane.youngest, [&](const Stay& stay) { return gone(lane, stay); });
}

Scheduler::Index Scheduler::youngest_of(Lane& lane, int pool) {
  while (!lane.youngest.empty() && gone(lane, lane.youngest.back())) lane.youngest.pop_back();
  auto found = std::find_if(lane.youngest.rbegin(), lane.youngest.rend(), [&](const Stay& stay) {
    return !gone(lane, stay) && pool_[stay.request] == pool;
  });
  const Index victim = found->request;
  lane.youngest.erase(std::next(found).base());
  return victim;
}

// A member needs a new block whenever (own tokens + iterations since it joined) is a multiple of the block.
std::size_t Scheduler::phase_of(Index request) const {
  const auto block = static_cast<std::int64_t>(limits_.block_tokens);
  return static_cast<std::size_t>(((own_tokens(request) - joined_[request]) % block + block) % block);
}

}  // namespace lamina
