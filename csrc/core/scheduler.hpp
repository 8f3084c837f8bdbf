#pragma once

#include <cstdint>
#include <vector>

#include "core/batching.hpp"
#include "core/kv_pools.hpp"

namespace lamina {

struct DecodingBatch : BatchMembers {
  std::int64_t arriving = 0;  // sequences of those admitted, ready or not
  bool midway = false;        // between advance() and finish(): there is room for the tokens being made
};

// Continuous batching over shared KV memory: which requests wait, which run in which batch, which make room.
// One implementation for the simulator and the engine; it knows no clock. Per iteration it does work for the
// requests that join and leave, not for those that stay.
class Scheduler : public Batching<Scheduler, DecodingBatch> {
public:
  // What joined and what was preempted when a batch went on.
  struct Change {
    std::vector<Index> preempted;
    std::vector<Index> joined;
    std::vector<Index> admitted;         // staged: those admitted now, whichever batch they will join
    std::int64_t recomputed_tokens = 0;  // KV that joining requests had lost when they were preempted
  };

  // `priority` empty means first come, first served by index.
  Scheduler(RequestTable requests, SchedulerLimits limits, Priority priority = {});

  // The caller's columns have moved, have more rows or hold new requests in rows of those that have left.
  void rebind(RequestTable requests) { bind(requests); }

  // Whether a request, of a table of the caller's, could ever be served.
  bool fits(const RequestTable& requests, Index request) const;

  // The batch has run an iteration: each of its requests has one token more, and those that have all leave.
  const std::vector<Index>& finish(int batch);

  // The batch is about to run its next iteration: its requests get room for their next token, waiting ones
  // are admitted to the emptiest batches, and those meant for this one join it.
  const Change& advance(int batch);
  const Change& change() const { return change_; }  // the last one

  // Staged: the request, which was admitted, has its KV, and joins when its batch goes on next.
  void ready(Index request);
  // Staged: the KV of those that got ready since advance() comes with this iteration: they join it too.
  const Change& join(int batch);
  // Staged: the iteration that the request joined came to nothing, or the KV that it was ready with is lost.
  // It is as when it was admitted, and keeps what it was promised.
  void unjoin(Index request);

  // The request leaves at once, wherever it is: it was cancelled, or has ended before its last token. Does
  // nothing for one that is neither waiting nor running.
  void remove(Index request);

  std::int64_t size(int batch) const { return at(batch).members; }
  // All that the next iteration computes something for: here the sequences that it makes a token for.
  std::int64_t sequences(int batch) const { return size(batch); }
  // Tokens written in the pool that holds most of them: what is charged but to come is left out.
  std::int64_t fullest_pool() const;

  // Whether the request waits or runs.
  bool is_present(Index request) const {
    const RequestState state = states_[request];
    return state == RequestState::kWaiting || state == RequestState::kAdmitted ||
           state == RequestState::kRunning;
  }
  const KvPools& pools() const { return pools_; }
  std::int64_t used() const { return pools_.used(); }
  std::int64_t capacity() const { return pools_.capacity() * pools_.pools(); }

  // Recounts everything; throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  friend class Batching<Scheduler, DecodingBatch>;

  std::int64_t free_blocks(int pool) const { return pools_.free(pool) / limits_.block_tokens; }
  bool has_blocks(int pool, std::int64_t blocks) const {
    return pools_.free(pool) >= blocks * limits_.block_tokens;
  }
  void take_blocks(int pool, std::int64_t blocks) { pools_.take(pool, blocks * limits_.block_tokens); }
  std::int64_t own_tokens_at_join(Index request) const { return own_tokens(request); }
  void preempt(DecodingBatch& batch, int pool);

  std::int64_t own_tokens(Index request) const;
  std::int64_t charge(Index request) const;
  void admit();
  bool try_admit(Index request);
  std::size_t batch_for(std::int64_t width) const;
  int pool_for(Index request, const DecodingBatch& batch) const;
  void arrive(DecodingBatch& batch, Index request, int sign);
  std::int64_t tokens_at_join(Index request) const;
  std::int64_t watermark() const;
  void join(DecodingBatch& batch);
  void part(DecodingBatch& batch, Index request);
  void leave(DecodingBatch& batch, Index request);
  void give_back(Index request, std::int64_t tokens);

  KvPools pools_;
  const std::int64_t request_tokens_;  // whole blocks
  Change change_;
};

}  // namespace lamina
