#include "core/scheduler.hpp"

#include <algorithm>
#include <functional>
#include <ranges>
#include <stdexcept>
#include <utility>

namespace lamina {

Scheduler::Scheduler(RequestTable requests, SchedulerLimits limits, Priority priority)
    : Batching(requests, limits, std::move(priority)),
      pools_(limits.pools, limits.tokens_per_pool, limits.block_tokens),
      request_tokens_(pools_.rounded(limits.request_tokens)) {}

bool Scheduler::fits(const RequestTable& requests, Index request) const {
  // With its last token, alone in a pool.
  const std::int64_t prompt = requests.prompt[request], width = requests.width_of(request);
  const auto ids = requests.prefix(request).size();
  const std::int64_t shared = static_cast<std::int64_t>(ids) * requests.prefix_block_tokens;
  const std::int64_t own = std::max<std::int64_t>(0, prompt - shared) + width * requests.output[request];
  const std::int64_t prefix = pools_.prefix_tokens_alone(ids, prompt, requests.prefix_block_tokens);
  return pools_.rounded(own) + prefix + request_tokens_ <= pools_.capacity() && width <= limits_.max_requests;
}

const std::vector<Scheduler::Index>& Scheduler::finish(int batch) {
  DecodingBatch& its = at(batch);
  count_iteration(its);
  its.midway = false;
  finish_leaving(its, [&](Index request) { leave(its, request); });
  return finished_;
}

void Scheduler::remove(Index request) {
  DecodingBatch& batch = batches_[batch_[request]];
  switch (states_[request]) {
    case RequestState::kWaiting:
      queue_.erase(request);
      break;
    case RequestState::kAdmitted:
      // It has what it was charged, as one that has just joined does.
      std::erase(batch.joining, request);
      arrive(batch, request, -1);
      give_back(request, charge(request));
      break;
    case RequestState::kRunning:
      unchain(batch, request);
      leave(batch, request);
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
  DecodingBatch& its = at(batch);
  if (grows() && its.members > 0) make_room(its);
  admit();
  join(its);
  its.midway = true;
  return change_;
}

void Scheduler::ready(Index request) {
  std::vector<Index>& joining = batches_[batch_[request]].joining;
  if (!limits_.staged || states_[request] != RequestState::kAdmitted ||
      std::ranges::find(joining, request) != joining.end())
    throw std::invalid_argument("only a request that was admitted can get ready, and once");
  joining.push_back(request);
}

const Scheduler::Change& Scheduler::join(int batch) {
  join(at(batch));
  return change_;
}

void Scheduler::unjoin(Index request) {
  DecodingBatch& batch = batches_[batch_[request]];
  if (states_[request] == RequestState::kAdmitted && std::erase(batch.joining, request) > 0) return;
  if (!limits_.staged || states_[request] != RequestState::kRunning || joined_[request] != batch.iteration)
    throw std::invalid_argument(
        "only a request that is ready, or has joined an iteration under way, can leave");
  unchain(batch, request);
  part(batch, request);
  arrive(batch, request, 1);
  states_[request] = RequestState::kAdmitted;
}

std::int64_t Scheduler::fullest_pool() const {
  std::int64_t fullest = 0;
  for (int pool = 0; pool < limits_.pools; ++pool) {
    std::int64_t read = 0;
    for (const DecodingBatch& batch : batches_) {
      const auto p = static_cast<std::size_t>(pool);
      read += batch.kv[p] + batch.members_of[p] * request_tokens_;
    }
    // A shared prefix is read by several and written once.
    fullest = std::max(fullest, std::min(read, pools_.capacity() - pools_.free(pool)));
  }
  return fullest;
}

// Tokens outside of shared prefix blocks when the request joined last: what it alone is charged for.
std::int64_t Scheduler::own_tokens(Index request) const {
  const std::int64_t shared =
      static_cast<std::int64_t>(requests_.prefix(request).size()) * requests_.prefix_block_tokens;
  return std::max<std::int64_t>(0, requests_.prompt[request] - shared) +
         requests_.width_of(request) * produced_[request];
}

// What a request takes of its pool when it is admitted, shared prefix blocks aside.
std::int64_t Scheduler::charge(Index request) const {
  const std::int64_t own = own_tokens(request);
  const std::int64_t to_come = grows() ? 1 : requests_.output[request] - produced_[request];
  return pools_.rounded(own + requests_.width_of(request) * to_come) + request_tokens_;
}

void Scheduler::preempt(DecodingBatch& batch, int pool) {
  const Index victim = take_youngest(batch, pool);
  unchain(batch, victim);
  leave(batch, victim);
  produced_[victim] += static_cast<std::int32_t>(batch.iteration - joined_[victim]);
  wait(victim);
  change_.preempted.push_back(victim);
}

void Scheduler::admit() {
  while (!queue_.empty() && try_admit(queue_.front().second)) queue_.pop();
}

// Room that admission leaves to requests that are growing: without it the newcomer is preempted again at
// once. vLLM leaves a hundredth too.
std::int64_t Scheduler::watermark() const { return grows() && running_ > 0 ? pools_.capacity() / 100 : 0; }

bool Scheduler::try_admit(Index request) {
  const std::int64_t width = requests_.width_of(request);
  if (running_ + width > limits_.max_requests) return false;
  // Most attempts end here, while memory is full: before a batch and a pool are chosen.
  if (charge(request) + watermark() > pools_.free(pools_.roomiest())) return false;
  const std::size_t batch = batch_for(width);
  const int pool = pool_for(request, batches_[batch]);
  const auto prefix = requests_.prefix(request);
  std::int64_t needed = charge(request);
  if (needed <= pools_.free(pool) && !prefix.empty()) {
    needed += pools_.missing(pool, prefix, requests_.prompt[request], requests_.prefix_block_tokens);
  }
  if (needed + watermark() > pools_.free(pool)) return false;
  pools_.take(pool, charge(request));
  if (!prefix.empty()) pools_.hold(pool, prefix, requests_.prompt[request], requests_.prefix_block_tokens);
  pool_[request] = static_cast<std::uint16_t>(pool);
  batch_[request] = static_cast<std::uint16_t>(batch);
  states_[request] = RequestState::kAdmitted;
  (limits_.staged ? change_.admitted : batches_[batch].joining).push_back(request);
  arrive(batches_[batch], request, 1);
  running_ += width;
  return true;
}

int Scheduler::pool_for(Index request, const DecodingBatch& batch) const {
  if (limits_.pools == 1) return 0;
  const std::size_t ids = requests_.prefix(request).size();
  const std::int64_t prefix =
      pools_.prefix_tokens_alone(ids, requests_.prompt[request], requests_.prefix_block_tokens);
  const std::int64_t needed = pools_.rounded(charge(request) + prefix + watermark());
  return Batching::pool_for(batch, needed / limits_.block_tokens);
}

// Counts a request among those that will join the batch (sign 1), or no more (-1).
void Scheduler::arrive(DecodingBatch& batch, Index request, int sign) {
  batch.arriving += sign * requests_.width_of(request);
  batch.arriving_kv[pool_[request]] += sign * tokens_at_join(request);
}

std::int64_t Scheduler::tokens_at_join(Index request) const {
  return requests_.prompt[request] + requests_.width_of(request) * produced_[request];
}

// The batch with the fewest requests, so that all take about the same time. If there are not `min_batch`
// sequences for every batch, only the fullest `running / min_batch` batches are filled, and the others drain.
std::size_t Scheduler::batch_for(std::int64_t width) const {
  const auto load = [&](std::size_t j) { return batches_[j].members + batches_[j].arriving; };
  const auto enough = static_cast<std::size_t>((running_ + width) / limits_.min_batch);
  const auto all = std::views::iota(std::size_t{0}, batches_.size());
  // Of equal ones the first.
  if (enough >= batches_.size()) return *std::ranges::min_element(all, {}, load);
  std::vector<std::size_t> open(batches_.size());
  std::ranges::copy(all, open.begin());
  std::ranges::stable_sort(open, std::ranges::greater{}, load);
  open.resize(std::max<std::size_t>(1, enough));
  std::ranges::sort(open);
  return *std::ranges::min_element(open, {}, load);
}

void Scheduler::join(DecodingBatch& batch) {
  for (const Index request : batch.joining) {
    const std::int64_t width = requests_.width_of(request);
    const std::int64_t tokens = tokens_at_join(request);
    batch.arriving -= width;
    joined_[request] = batch.iteration;
    states_[request] = RequestState::kRunning;
    join_members(batch, request, width, tokens);
    if (produced_[request] > 0) change_.recomputed_tokens += tokens;
    change_.joined.push_back(request);
  }
  batch.joining.clear();
  sweep(batch);
}

// A running request is in its batch no more.
void Scheduler::part(DecodingBatch& batch, Index request) {
  const std::int64_t width = requests_.width_of(request);
  const std::int64_t made = batch.iteration - joined_[request];
  leave_members(batch, request, width, requests_.prompt[request] + width * (produced_[request] + made));
}

// A running request leaves; its place in the chain of those that leave with it is up to the caller.
void Scheduler::leave(DecodingBatch& batch, Index request) {
  part(batch, request);
  const std::int64_t width = requests_.width_of(request);
  const std::int64_t made = batch.iteration - joined_[request];
  // In an iteration it has room for the tokens being made.
  const std::int64_t grown = own_tokens(request) + width * (made + (batch.midway ? 1 : 0));
  give_back(request, grows() ? pools_.rounded(grown) + request_tokens_ : charge(request));
}

void Scheduler::give_back(Index request, std::int64_t tokens) {
  const int pool = pool_[request];
  pools_.give(pool, tokens);
  const auto prefix = requests_.prefix(request);
  if (!prefix.empty()) pools_.drop(pool, prefix);
  running_ -= requests_.width_of(request);
}

}  // namespace lamina
