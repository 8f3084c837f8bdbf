#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/prompt_scheduler.hpp"
#include "core/ticks.hpp"
#include "sim/grid.hpp"

namespace lamina::sim {

// Attention of one layer on one worker as it was measured, in ticks: docs/simulator-prefill.md
// ("Measured attention").
class MeasuredAttention {
public:
  using Chunks = std::span<const PromptScheduler::Chunk>;

  // What lies beyond the grids grows as these do.
  struct Beyond {
    double fixed = 0, per_request = 0, per_kv_token = 0, per_mean_token = 0;
    double prompt_fixed = 0, per_row = 0, per_pair = 0;
  };

  Grid decode;      // by requests and KV tokens of each
  Grid prompt;      // by tokens of a chunk and those before it
  Grid mixed;       // by both
  Grid skew;        // how far towards the longest: by requests and the share of them that are long
  Grid mixed_skew;  // by these and the KV tokens of the longest
  Beyond beyond;

  Ticks ticks(const Attended& decoding, Chunks chunks) const {
    double time = 0, tokens = 0, history = 0;
    for (const PromptScheduler::Chunk& chunk : chunks) {
      const auto of = static_cast<double>(chunk.tokens), before = static_cast<double>(chunk.before);
      time += of_prompt(of, before);
      tokens += of;
      history += of * before;
    }
    if (decoding.requests == 0) return rounded(time);
    const auto requests = static_cast<double>(decoding.requests);
    const double mean = static_cast<double>(decoding.kv) / requests;
    const auto least = static_cast<double>(decoding.least), most = static_cast<double>(decoding.most);
    const double share = most > least ? (mean - least) / (most - least) : 1;
    if (chunks.empty()) {
      const double even = of_decoding(requests, mean);
      const double longest = of_decoding(requests, most);
      return rounded(even + skew.at({{requests, share}}) * std::max(0.0, longest - even));
    }
    history /= tokens;
    const double even = of_both(tokens, history, requests, mean);
    const double longest = of_both(tokens, history, requests, most);
    const double towards = mixed_skew.at({{requests, share, most}});
    // The grid has one chunk; several are what they are, each by itself.
    const double more = time - of_prompt(tokens, history);
    return rounded(std::max(time, even + towards * std::max(0.0, longest - even) + more));
  }

private:
  static Ticks rounded(double ticks) { return static_cast<Ticks>(std::floor(ticks + 0.5)); }

  static double within(const Grid& grid, std::size_t axis, double x) {
    return std::clamp(x, grid.axis(axis).front(), grid.axis(axis).back());
  }
  double formula(double requests, double mean) const {
    return beyond.fixed + beyond.per_request * requests + beyond.per_kv_token * requests * mean +
           beyond.per_mean_token * mean;
  }
  double prompt_formula(double tokens, double before) const {
    return beyond.prompt_fixed + beyond.per_row * tokens +
           beyond.per_pair * (tokens * before + tokens * (tokens + 1) / 2);
  }
  // Above what was measured by the ratio of the formula; below, as at the edge.
  double of_decoding(double requests, double mean) const {
    const double n = std::min(requests, decode.axis(0).back()), kv = within(decode, 1, mean);
    const double time = decode.at({{n, kv}});
    if (n == requests && mean <= kv) return time;
    return time * (formula(requests, std::max(mean, kv)) / formula(n, kv));
  }
  double of_prompt(double tokens, double before) const {
    const double c = within(prompt, 0, tokens), p = std::min(before, prompt.axis(1).back());
    const double time = prompt.at({{c, p}});
    if (tokens <= c && before == p) return time;
    return time * (prompt_formula(std::max(tokens, c), before) / prompt_formula(c, p));
  }
  double of_both(double tokens, double before, double requests, double mean) const {
    const double c = within(mixed, 0, tokens), p = std::min(before, mixed.axis(1).back());
    const double n = std::min(requests, mixed.axis(2).back()), kv = within(mixed, 3, mean);
    const double time = mixed.at({{c, p, n, kv}});
    if (tokens <= c && before == p && n == requests && mean <= kv) return time;
    return time * ((prompt_formula(std::max(tokens, c), before) + formula(requests, std::max(mean, kv))) /
                   (prompt_formula(c, p) + formula(n, kv)));
  }
};

}  // namespace lamina::sim
