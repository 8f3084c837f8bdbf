#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/ticks.hpp"
#include "sim/measured_attention.hpp"
#include "sim/pipeline.hpp"

namespace lamina::sim {

// Costs of serving besides the model, on any hardware.
struct ServingCosts {
  Ticks host_fixed = 0;  // per iteration
  double host_per_request = 0;
  // The host prepares a batch's next iteration while its current one runs.
  bool host_async = false;
  double gap_per_request = 0;      // of the host's time, what passes between iterations even so
  double recompute_per_token = 0;  // to bring back the KV of a preempted request
  // The front end takes requests one after the other, `request_serial` each; `request_in` later one is in the
  // queue. Tokens are with the client `out` after they are made.
  Ticks request_in = 0, request_serial = 0, out = 0;
  // The host launches an iteration's kernels one by one, for so long, where it has chunks of prompts and more
  // rows than were captured as a graph.
  std::int64_t graph_rows = 0;
  Ticks launch = 0;
};

// Attention of chunks of prompts, per layer.
struct PromptCosts {
  Ticks fixed = 0;            // of an iteration that has chunks
  double per_row = 0;         // and token of a chunk
  double per_pair = 0;        // and pair of a token and one that it looks at
  double per_token = 0;       // at least this for every token that a chunk looks at: its KV is read once
  std::vector<Ticks> head{};  // LM head and sampling, by requests that a token is made for
};

// What layers whose tokens look at no more than so many add to attention, on average over all layers.
struct Windows {
  std::int64_t tokens = 0;          // 0 is no such layers
  std::vector<double> per_token{};  // ticks per KV token that is looked at, by requests that decode
  double per_pair = 0;              // of chunks of prompts
};

// How long things take on a deployment, worked out beforehand: tables by batch size (entry B for B requests;
// with prompts, for B tokens where a slice or a transfer is meant), straight lines in KV tokens.
struct Costs {
  ServingCosts serving;
  PromptCosts prompts;
  Windows windows;
  std::vector<Load> loads;  // `Load::attention` here holds only the part that does not depend on KV length
  std::vector<Ticks> attention_fixed;         // per layer
  std::vector<double> attention_per_token;    // ticks per layer and KV token of the fullest pool
  std::optional<MeasuredAttention> measured;  // in place of these, and of prompts' attention
  // Attention streamed in this many mini-batches along requests or heads, so that transfer hides behind it
  // (v1 paper 5.2.1); 1 is off. Only the part of a transfer beyond
  // `transfer_latency` is divided over the chunks. Along requests there are no
  // more mini-batches than requests; each but the first costs a launch.
  int stream_chunks = 1;
  bool stream_by_request = true;
  Ticks chunk_overhead = 0;
  Ticks transfer_latency = 0;
  // KV beyond this many tokens of a pool is in host memory, and each such token costs this much per layer.
  static constexpr std::int64_t kUnlimited = std::int64_t{1} << 62;
  std::int64_t device_tokens = kUnlimited;
  double paged_per_token = 0;
};

inline Ticks to_ticks(double ticks) { return static_cast<Ticks>(ticks + 0.5); }

// Pairs of a token with itself and each before it, of tokens that come after `before` others.
inline std::int64_t pairs_of(std::int64_t tokens, std::int64_t before) {
  return tokens * before + tokens * (tokens + 1) / 2;
}

// A chunk of `tokens` that come after `before` others.
inline Ticks chunk_ticks(const Costs& costs, std::int64_t tokens, std::int64_t before) {
  const PromptCosts& prompts = costs.prompts;
  double compute = static_cast<double>(tokens) * prompts.per_row +
                   static_cast<double>(pairs_of(tokens, before)) * prompts.per_pair;
  if (const std::int64_t window = costs.windows.tokens; window > 0) {
    // The first of them see all that is before them.
    const std::int64_t all = std::clamp<std::int64_t>(window - before, 0, tokens);
    const std::int64_t observed = pairs_of(all, before) + (tokens - all) * window;
    compute += static_cast<double>(observed) * costs.windows.per_pair;
  }
  return to_ticks(std::max(compute, static_cast<double>(before + tokens) * prompts.per_token));
}

// What one batch's iteration computes; `attention` of KV tokens alone.
struct Composition {
  std::int64_t rows;    // tokens that pass through the model
  std::int64_t made;    // with prompts: requests that a token is made for
  std::int64_t kv;      // tokens that are attended to in the pool that has most of them
  std::int64_t stored;  // tokens in the fullest pool
  Ticks attention;
};

// Of so many requests that decode, where a pool has no more KV to attend to than `kv`.
inline Ticks formula_of(const Costs& costs, std::int64_t decoding, std::int64_t kv) {
  if (decoding == 0) return 0;
  const auto b = static_cast<std::size_t>(decoding);
  const Ticks all =
      costs.attention_fixed[b] + to_ticks(static_cast<double>(kv) * costs.attention_per_token[b]);
  if (costs.windows.tokens == 0) return all;
  const std::int64_t observed = std::min(kv, decoding * costs.windows.tokens);
  return all + to_ticks(static_cast<double>(observed) * costs.windows.per_token[b]);
}

// Of requests that decode, all in one pool.
inline Ticks attention_of(const Costs& costs, const Attended& all) {
  return costs.measured ? costs.measured->ticks(all, {}) : formula_of(costs, all.requests, all.kv);
}

inline Load load_of(const Costs& costs, const Composition& batch) {
  if (batch.rows == 0) return {};
  const std::int64_t kv = batch.kv, stored = batch.stored, size = batch.rows;
  Load load = costs.loads[static_cast<std::size_t>(size)];
  if (!costs.prompts.head.empty())
    load.last_slice += costs.prompts.head[static_cast<std::size_t>(batch.made)];
  load.attention += batch.attention;
  if (stored > costs.device_tokens) {
    const double paged = static_cast<double>(stored - costs.device_tokens) / static_cast<double>(stored);
    load.attention += to_ticks(static_cast<double>(kv) * paged * costs.paged_per_token);
  }
  const Ticks chunks =
      costs.stream_by_request ? std::min<Ticks>(costs.stream_chunks, size) : costs.stream_chunks;
  if (chunks > 1) {
    load.attention += (chunks - 1) * costs.chunk_overhead;
    const Ticks in = load.q_transfer - costs.transfer_latency;
    const Ticks out = load.out_transfer - costs.transfer_latency;
    const Ticks slowest = std::max({in, load.attention, out});
    load.attention = load.attention / chunks + slowest * (chunks - 1) / chunks;
    load.q_transfer = costs.transfer_latency + in / chunks;
    load.out_transfer = costs.transfer_latency + out / chunks;
  }
  return load;
}

// What the devices wait for the host before an iteration of so many requests, some of whose time has passed.
inline Ticks host_of(const ServingCosts& costs, std::int64_t size, Ticks prepared) {
  const auto requests = static_cast<double>(size);
  const Ticks host = costs.host_fixed + to_ticks(requests * costs.host_per_request);
  return std::max<Ticks>(0, host - prepared) + to_ticks(requests * costs.gap_per_request);
}

}  // namespace lamina::sim
