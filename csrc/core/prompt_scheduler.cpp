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
                                 Priority priority)
    : Batching(requests, limits, std::move(priority)),
      prompts_(prompts),
      pools_(static_cast<std::size_t>(limits.pools), BlockPool(limits.tokens_per_pool / limits.block_tokens)),
      prefix_blocks_(ceil_div(requests.prefix_block_tokens, limits.block_tokens)),
      request_blocks_(ceil_div(limits.request_tokens, limits.block_tokens)) {
  if (requests_.prefix_block_tokens < 1) throw std::invalid_argument("a prefix block has at least one token");
  rebind(requests);
}

void PromptScheduler::rebind(RequestTable requests) {
  bind(requests);
  computed_.resize(requests.prompt.size());
  shared_.resize(requests.prompt.size());
}

bool PromptScheduler::fits(const RequestTable& requests, Index request) const {
  const std::int64_t last = requests.prompt[request] + requests.output[request];
  return blocks_for(requests, request, last) + request_blocks_ <= pools_.front().capacity();
}

const std::vector<PromptScheduler::Index>& PromptScheduler::finish(int batch) {
  PromptBatch& its = at(batch);
  count_iteration(its);
  for (const Index request : its.joining) join_members(its, request, 1, computed_[request]);
  its.joining.clear();
  finish_leaving(its, [&](Index request) {
    computed_[request] = static_cast<std::int32_t>(computed(its, request));
    leave(its, request);
    if (prompts_.holds) --running_;
  });
  // A chain has the last to join first; memory comes back in the order of the batch.
  std::ranges::reverse(finished_);
  auto& ended = prompts_.holds ? its.stored : its.ended;
  ended.insert(ended.end(), finished_.begin(), finished_.end());
  return finished_;
}

const PromptScheduler::Change& PromptScheduler::advance(int batch) {
  change_.preempted.clear();
  change_.sent_back.clear();
  change_.admitted.clear();
  change_.joined.clear();
  PromptBatch& its = at(batch);
  release(its.ended_before);
  if (prompts_.lags) {
    std::swap(its.ended, its.ended_before);
  } else {
    release(its.ended);
  }
  if (grows() && its.members > 0) make_room(its);
  its.step.chunks.clear();
  its.step.decoding = its.step.rows = its.members;
  std::int64_t budget = prompts_.budget - its.members;
  if (its.prompt != kNone && !compute(its, its.prompt, budget)) preempt(its, pool_[its.prompt]);
  if (change_.preempted.empty() && change_.sent_back.empty()) admit(its, budget);
  sweep(its);
  return change_;
}

std::int64_t PromptScheduler::size(int batch) const {
  return at(batch).step.decoding + static_cast<std::int64_t>(at(batch).joining.size());
}

std::int64_t PromptScheduler::sequences(int batch) const {
  return at(batch).step.decoding + static_cast<std::int64_t>(at(batch).step.chunks.size());
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
std::int64_t PromptScheduler::computed(const PromptBatch& batch, Index request) const {
  return known(request) + batch.iteration - joined_[request] - 1;
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

// Its blocks besides prefix blocks.
std::int64_t PromptScheduler::own_blocks(Index request, std::int64_t computed) const {
  return blocks_for(request, grows() ? computed : final_tokens(request)) - shared_[request] * prefix_blocks_ +
         request_blocks_;
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
  std::erase(batches_[batch_[request]].stored, request);
  free(request);
}

void PromptScheduler::free(Index request) {
  BlockPool& pool = pool_of(request);
  pool.give(own_blocks(request, computed_[request]));
  const auto prefix = requests_.prefix(request);
  for (std::int32_t i = shared_[request]; i-- > 0;) pool.drop(prefix[static_cast<std::size_t>(i)]);
}

// The youngest is the request whose prompt is computed, if it is in that pool.
void PromptScheduler::preempt(PromptBatch& batch, int pool) {
  if (batch.prompt != kNone && pool_[batch.prompt] == pool) {
    const Index victim = std::exchange(batch.prompt, kNone);
    batch.arriving_kv[pool_[victim]] -= known(victim);
    queue_again(victim, computed_[victim]);
    change_.sent_back.push_back(victim);
    return;
  }
  const Index victim = take_youngest(batch, pool);
  unchain(batch, victim);
  const std::int64_t there = computed(batch, victim);
  leave(batch, victim);
  // Its memory is given back as it was when it had made these tokens.
  const auto made = static_cast<std::int32_t>(batch.iteration - joined_[victim]);
  queue_again(victim, there);
  produced_[victim] += made;
  change_.preempted.push_back(victim);
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
  --running_;
  wait(request);
}

// The next chunk of a prompt, as far as the budget goes; false where there is no memory for it.
bool PromptScheduler::compute(PromptBatch& batch, Index request, std::int64_t& budget) {
  BlockPool& pool = pool_of(request);
  const std::int64_t before = computed_[request];
  const std::int64_t tokens = std::min(known(request) - before, budget);
  if (tokens <= 0) return true;
  if (grows()) {
    const std::int64_t more = blocks_for(request, before + tokens) - blocks_for(request, before);
    if (more > pool.free()) return false;
    pool.take(more);
  }
  batch.step.chunks.push_back({request, tokens, before});
  batch.step.rows += tokens;
  budget -= tokens;
  computed_[request] += static_cast<std::int32_t>(tokens);
  const auto prefix = requests_.prefix(request);
  const std::int64_t filled =
      std::min<std::int64_t>(shareable(request), computed_[request] / requests_.prefix_block_tokens);
  for (; shared_[request] < filled; ++shared_[request])
    pool.add(prefix[static_cast<std::size_t>(shared_[request])], prefix_blocks_);
  batch.prompt = request;
  if (computed_[request] == known(request)) {
    batch.prompt = kNone;
    joined_[request] = batch.iteration;
    batch.joining.push_back(request);
    change_.joined.push_back(request);
  }
  return true;
}

void PromptScheduler::admit(PromptBatch& batch, std::int64_t& budget) {
  const std::int64_t seats = ceil_div(limits_.max_requests, limits_.batches);
  while (budget > 0 && !queue_.empty() && batch.requests() < seats && running_ < limits_.max_requests) {
    const Index request = queue_.front().second;
    if (!try_admit(batch, request)) return;
    queue_.pop();
    batch_[request] = static_cast<std::uint16_t>(&batch - batches_.data());
    change_.admitted.push_back(request);
    compute(batch, request, budget);
  }
}

// It goes into its batch's pool if that has room for all of it, and takes what is there already.
bool PromptScheduler::try_admit(PromptBatch& batch, Index request) {
  const std::int64_t all = blocks_for(request, grows() ? known(request) : final_tokens(request));
  const auto best = static_cast<std::size_t>(pool_for(batch, all + request_blocks_));
  BlockPool& pool = pools_[best];
  const auto prefix = requests_.prefix(request);
  // Its last token is computed, whatever is there: what comes after it is made from it.
  const std::int64_t most =
      std::min(shareable(request), (known(request) - 1) / requests_.prefix_block_tokens);
  std::int64_t hits = 0;
  std::int64_t from_line = 0;
  for (; hits < most && pool.has(prefix[static_cast<std::size_t>(hits)]); ++hits)
    from_line += pool.stored(prefix[static_cast<std::size_t>(hits)]) ? 0 : prefix_blocks_;
  const bool retained = hits == shareable(request) && pool_[request] == best;
  const std::int64_t own = retained ? pool.retained(request) : 0;
  const std::int64_t more = all - hits * prefix_blocks_ - own;
  if (more + request_blocks_ + from_line + own > pool.free()) return false;
  if (retained) {
    pool.take_retained(request);
  } else {
    pool_of(request).forget(request);
  }
  pool_[request] = static_cast<std::uint16_t>(best);
  batch.arriving_kv[best] += known(request);
  for (std::int64_t i = 0; i < hits; ++i) pool.hold(prefix[static_cast<std::size_t>(i)]);
  shared_[request] = static_cast<std::int32_t>(hits);
  computed_[request] =
      static_cast<std::int32_t>(hits * requests_.prefix_block_tokens + own * limits_.block_tokens);
  pool.take(request_blocks_ + (grows() ? 0 : more));
  states_[request] = RequestState::kRunning;
  ++running_;
  return true;
}

void PromptScheduler::check_integrity() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("prompt scheduler: ") + what);
  };
  std::vector<std::int64_t> own(pools_.size());
  std::vector<std::unordered_set<std::int64_t>> stored(pools_.size());
  std::int64_t running = 0;
  const auto count = [&](Index request, std::int64_t computed) {
    own[pool_[request]] += own_blocks(request, computed);
    for (const std::int64_t id : requests_.prefix(request).first(static_cast<std::size_t>(shared_[request])))
      stored[pool_[request]].insert(id);
    ++running;
  };
  std::vector<std::int64_t> members(batches_.size());
  std::vector<std::vector<std::int64_t>> kv(batches_.size(), std::vector<std::int64_t>(pools_.size()));
  auto arriving_kv = kv;
  for (std::size_t row = 0; row < states_.size(); ++row) {
    const auto request = static_cast<Index>(row);
    if (states_[row] != RequestState::kRunning) continue;
    const PromptBatch& batch = batches_[batch_[row]];
    if (request == batch.prompt || std::ranges::find(batch.joining, request) != batch.joining.end()) {
      count(request, computed_[row]);
      arriving_kv[batch_[row]][pool_[row]] += known(request);
      continue;
    }
    const std::int64_t there = computed(batch, request);
    expect(there < final_tokens(request) - 1, "a request runs beyond its last token");
    ++members[batch_[row]];
    kv[batch_[row]][pool_[row]] += there;
    count(request, there + 1);  // its next token is being computed
  }
  for (std::size_t j = 0; j < batches_.size(); ++j) {
    const PromptBatch& batch = batches_[j];
    for (const auto* ended : {&batch.ended, &batch.ended_before, &batch.stored})
      for (const Index request : *ended) count(request, computed_[request]);
    running -= static_cast<std::int64_t>(batch.stored.size());
    expect(members[j] == batch.members, "a batch's members are counted wrong");
    expect(kv[j] == batch.kv, "a batch's KV tokens are wrong");
    expect(arriving_kv[j] == batch.arriving_kv, "the KV tokens of prompts under way are wrong");
    expect(batch.step.rows <= prompts_.budget, "a batch computes more than its budget");
  }
  expect(running == running_, "the number of running requests is wrong");
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    pools_[pool].check_integrity();
    const auto shared = static_cast<std::int64_t>(stored[pool].size()) * prefix_blocks_;
    expect(pools_[pool].capacity() - pools_[pool].free() == own[pool] + shared, "a pool's books are wrong");
    for (const std::int64_t id : stored[pool])
      expect(pools_[pool].stored(id), "a prefix block that is held is not there");
  }
}

}  // namespace lamina
