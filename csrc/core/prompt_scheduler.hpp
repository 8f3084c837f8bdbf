#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/batching.hpp"
#include "core/block_pool.hpp"

namespace lamina {

struct PromptLimits {
  std::int64_t budget = 2048;  // most tokens that a batch computes in an iteration
  bool lags = false;   // an iteration is scheduled while the one before it runs: docs/simulator-prefill.md
  bool holds = false;  // the KV of requests that have ended stays until release()
};

// Part of a prompt that an iteration computes.
struct PromptChunk {
  RequestQueue::Index request;
  std::int64_t tokens;
  std::int64_t before;  // tokens whose KV is there
};

// What a batch's iteration computes.
struct PromptStep {
  std::int64_t decoding = 0;  // requests that have one token computed
  std::int64_t rows = 0;      // tokens in all
  std::vector<PromptChunk> chunks;
};

// Its `joining` are those whose prompt ends with the iteration that runs.
struct PromptBatch : BatchMembers {
  Index prompt = UINT32_MAX;               // admitted last, and its prompt is not at its end
  std::vector<Index> ended, ended_before;  // have all tokens, and keep seat and memory for a while
  std::vector<Index> stored;               // have all tokens, and keep memory until they are released
  PromptStep step;

  std::int64_t requests() const {
    return members + static_cast<std::int64_t>(joining.size() + ended.size() + ended_before.size()) +
           (prompt != UINT32_MAX ? 1 : 0);
  }
};

// Continuous batching with prefill as vLLM does it: prompts in chunks, alongside the requests that
// decode. docs/simulator-prefill.md ("Colocated prefill") defines it. Per iteration it does work for the
// requests that are in their prompt or leave, not for those that decode on.
class PromptScheduler : public Batching<PromptScheduler, PromptBatch> {
public:
  using Chunk = PromptChunk;
  using Step = PromptStep;

  struct Change {
    std::vector<Index> preempted;  // that had made tokens since they were admitted
    std::vector<Index> sent_back;  // that had not
    std::vector<Index> admitted;
    std::vector<Index> joined;  // their prompt ends with this iteration, which makes a token for each
  };

  PromptScheduler(RequestTable requests, SchedulerLimits limits, PromptLimits prompts,
                  Priority priority = {});

  // The caller's columns have moved or have more rows.
  void rebind(RequestTable requests);

  // Whether an empty pool has room for a request, of a table of the caller's.
  bool fits(const RequestTable& requests, Index request) const;
  const std::vector<Index>& finish(int batch);
  const Change& advance(int batch);
  // The KV of a request that has ended and was kept is needed no more.
  void release(Index request);

  const Step& step(int batch) const { return at(batch).step; }
  // Requests for which the iteration makes a token, and all that it computes something for.
  std::int64_t size(int batch) const;
  std::int64_t sequences(int batch) const;
  // In tokens.
  std::int64_t used() const;
  std::int64_t fullest_pool() const;
  std::int64_t capacity() const { return pools_.front().capacity() * limits_.block_tokens * limits_.pools; }

  // Recounts everything; throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  friend class Batching<PromptScheduler, PromptBatch>;

  std::int64_t free_blocks(int pool) const { return pools_[static_cast<std::size_t>(pool)].free(); }
  bool has_blocks(int pool, std::int64_t blocks) const { return free_blocks(pool) >= blocks; }
  void take_blocks(int pool, std::int64_t blocks) { pools_[static_cast<std::size_t>(pool)].take(blocks); }
  std::int64_t own_tokens_at_join(Index request) const {
    return known(request) - std::int64_t{shared_[request]} * requests_.prefix_block_tokens - 1;
  }
  void preempt(PromptBatch& batch, int pool);

  BlockPool& pool_of(Index request) { return pools_[pool_[request]]; }
  std::int64_t known(Index request) const { return requests_.prompt[request] + produced_[request]; }
  std::int64_t computed(const PromptBatch& batch, Index request) const;
  std::int64_t shareable(Index request) const { return shareable(requests_, request); }
  static std::int64_t shareable(const RequestTable& requests, Index request);
  std::int64_t blocks_for(Index request, std::int64_t tokens) const {
    return blocks_for(requests_, request, tokens);
  }
  std::int64_t blocks_for(const RequestTable& requests, Index request, std::int64_t tokens) const;
  std::int64_t own_blocks(Index request, std::int64_t computed) const;
  std::int64_t final_tokens(Index request) const {
    return requests_.prompt[request] + requests_.output[request];
  }
  void release(std::vector<Index>& ended);
  void free(Index request);
  void queue_again(Index request, std::int64_t computed);
  bool compute(PromptBatch& batch, Index request, std::int64_t& budget);
  void admit(PromptBatch& batch, std::int64_t& budget);
  bool try_admit(PromptBatch& batch, Index request);
  void leave(PromptBatch& batch, Index request) {
    leave_members(batch, request, 1, computed(batch, request));
  }

  PromptLimits prompts_;
  std::vector<BlockPool> pools_;
  std::int64_t prefix_blocks_;          // KV blocks of a prefix block
  std::int64_t request_blocks_;         // of each request besides its tokens
  std::vector<std::int32_t> computed_;  // of a prompt that is not at its end
  std::vector<std::int32_t> shared_;    // its first prefix blocks, which it has a share in
  Change change_;
};

}  // namespace lamina
