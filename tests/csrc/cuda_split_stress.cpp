// The arithmetic that the CUDA kernels share with the host, at random beside an obvious model of it: windows,
// the sharing out of tiles, the softmax by parts, places in shared memory. Exits with 1 on a mismatch.

#include <cmath>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "attention/cuda/partition.hpp"
#include "attention/cuda/softmax.hpp"
#include "attention/cuda/tile.hpp"
#include "expect.hpp"

namespace {

using namespace lamina::attention::cuda;
using Random = std::mt19937_64;

bool near(double match, double wanted, double tolerance) {
  return std::isinf(wanted) ? match == wanted
                            : std::abs(match - wanted) <= tolerance * (1 + std::abs(wanted));
}

int pick(Random& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

void check_windows() {
  for (int length = 0; length < 8; ++length) {
    for (int window = 0; window < 10; ++window) {
      // Token i sees j if j <= i and i - j < window: the newest is the last of the list.
      std::vector<int> observed;
      for (int j = 0; j < length; ++j) {
        if (window == 0 || length - 1 - j < window) observed.push_back(j);
      }
      const Tokens all = visible({100, 100 + length}, window, 0, Which::kAll);
      expect(all.end - all.begin == static_cast<int>(observed.size()) && all.end == 100 + length,
             "a window of all tokens");
      const Tokens previous = visible({100, 100 + length}, window, 0, Which::kPrevious);
      expect(previous.begin == all.begin, "a window begins elsewhere without the newest token");
      expect(previous.end == (length == 0 ? all.end : all.end - 1), "a window without the newest token");
    }
  }
}

// A batch as the planning kernel would leave it.
struct Batch {
  std::vector<std::int32_t> offset{0}, begin, end;
  std::int32_t tile;

  Batch(const std::vector<int>& lengths, std::int32_t tile_tokens, Random& random) : tile(tile_tokens) {
    std::int32_t at = 0;
    for (const int length : lengths) {
      at += pick(random, 3);  // what a window hides
      begin.push_back(at);
      at += length;
      end.push_back(at);
      offset.push_back(offset.back() + tiles_of({begin.back(), end.back()}, tile));
    }
  }
  Requests requests() const {
    return {offset.data(), begin.data(), end.data(), static_cast<std::int32_t>(begin.size())};
  }
};

// Every worker goes through its share: together they must read every token of every unit once, and agree on
// who reads what of a unit.
void check_shares(const Batch& batch, int kv_heads, int most_workers) {
  const Requests requests = batch.requests();
  const std::int32_t per_head = batch.offset.back();
  const Line line = Line::among(std::int64_t{per_head} * kv_heads, most_workers);
  expect(line.workers <= most_workers && line.workers <= line.tiles, "more workers than there may be");
  expect((line.workers == 0) == (line.tiles == 0), "work and nobody to do it");

  const auto units = static_cast<std::size_t>(requests.count) * static_cast<std::size_t>(kv_heads);
  std::vector<std::int32_t> reached(units);
  std::vector<int> parts(units), announced(units);
  for (std::size_t unit = 0; unit < units; ++unit) reached[unit] = batch.begin[unit % batch.begin.size()];
  std::set<std::int64_t> names;
  for (std::int32_t worker = 0; worker < line.workers; ++worker) {
    const std::int64_t begin = line.share(worker);
    const std::int64_t end = line.share(worker + 1);
    expect(end - begin >= line.tiles / line.workers && end - begin <= line.tiles / line.workers + 1,
           "unequal shares");
    for (std::int64_t tile = begin; tile < end; ++tile) {
      expect(line.worker_of(tile) == worker, "worker_of() names another worker");
    }
    std::int32_t request =
        request_of(batch.offset.data(), requests.count, static_cast<std::int32_t>(begin % per_head));
    for (std::int64_t at = begin; at < end;) {
      const Segment segment = segment_at(line, worker, at, requests, request, batch.tile);
      const auto unit = static_cast<std::size_t>(segment.unit);
      expect(segment.unit == std::int64_t{segment.kv_head} * requests.count + segment.request,
             "a unit's number");
      expect(unit < units && segment.tokens.begin < segment.tokens.end, "a segment without tokens");
      expect(segment.tokens.begin == reached[unit], "a segment begins elsewhere than the last one ended");
      reached[unit] = segment.tokens.end;
      expect(segment.first_worker + parts[unit] == worker, "first_worker is another");
      expect(parts[unit] == 0 || announced[unit] == segment.parts, "workers disagree on a unit's parts");
      announced[unit] = segment.parts;
      ++parts[unit];
      expect(names.insert(segment.part(worker)).second, "two segments with one part");
      expect(segment.part(worker) < part_count(static_cast<std::int64_t>(units), most_workers),
             "a part too many");
      expect(segment.end > at && segment.end <= end, "a segment that does not advance");
      at = segment.end;
      request = segment.next_request;
    }
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    expect(reached[unit] == batch.end[unit % batch.end.size()], "tokens that nobody reads");
    expect(parts[unit] == announced[unit], "a unit waits for a part that never comes");
  }
}

void check_sharing(Random& random) {
  for (int round = 0; round < 6000; ++round) {
    std::vector<int> lengths(static_cast<std::size_t>(1 + pick(random, 12)));
    const int longest = 1 << pick(random, 9);
    const int empty = pick(random, 4);
    for (int& length : lengths) length = pick(random, 4) < empty ? 0 : 1 + pick(random, longest);
    check_shares(Batch(lengths, 1 << pick(random, 7), random), 1 + pick(random, 9), 1 + pick(random, 40));
  }
  // As large as it gets: products of tiles and workers need 64 bits, and no share may suffer.
  const Line line = Line::among((std::int64_t{1} << 31) / 64 * 128, 132 * 8);
  for (std::int32_t worker = 0; worker < line.workers; ++worker) {
    expect(line.worker_of(line.share(worker)) == worker, "worker_of() of a large line");
    expect(line.worker_of(line.share(worker + 1) - 1) == worker, "worker_of() of a large line's ends");
  }
  expect(line.share(line.workers) == line.tiles, "a large line's end");
}

// Online over groups, by parts and merged: the same as all at once in fp64.
void check_softmax(Random& random) {
  for (int round = 0; round < 3000; ++round) {
    const int tokens = pick(random, 200);
    const float spread = std::exp2(static_cast<float>(pick(random, 8)) - 2);
    std::normal_distribution<float> normal;
    std::vector<float> scores, values;
    for (int i = 0; i < tokens; ++i) {
      scores.push_back(spread * normal(random));
      values.push_back(normal(random));
    }
    double sum = 0;
    double total = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      sum += std::exp(double{scores[i]});
      total += std::exp(double{scores[i]}) * double{values[i]};
    }

    const float slope = kLog2E;
    float out = 0;
    float lse = kNothing;
    std::size_t at = 0;
    while (at < scores.size()) {
      const std::size_t part_end =
          std::min(scores.size(), at + 1 + static_cast<std::size_t>(pick(random, 80)));
      Running running;
      float gathered = 0;
      while (at < part_end) {
        const std::size_t group_end = std::min(part_end, at + 1 + static_cast<std::size_t>(pick(random, 16)));
        float observed = kNothing;
        for (std::size_t i = at; i < group_end; ++i) observed = std::max(observed, scores[i] * slope);
        gathered *= running.raise(observed);
        for (; at < group_end; ++at) {
          const float weight = running.weight(scores[at] * slope);
          running.sum += weight;
          gathered += weight * values[at];
        }
      }
      const float part_lse = log_sum(running.max, running.sum);
      const Merge merged = merge(lse, part_lse);
      out = merged.first * out + merged.second * (gathered / running.sum);
      lse = merged.lse;
    }
    expect(near(lse, std::log(sum), 1e-5), "a log-sum-exp by parts");
    expect(near(out, tokens == 0 ? 0 : total / sum, 2e-5), "an average by parts");
  }
  const Merge nothing = merge(kNothing, kNothing);
  expect(nothing.first == 0 && nothing.second == 0 && nothing.lse == kNothing,
         "the union of nothing and nothing");
  expect(merge(kNothing, 2).second == 1 && merge(3, kNothing).lse == 3, "the union with nothing");
  expect(merge(500, -500).first == 1, "a part that weighs nothing");
  expect(log_sum(0, 0) == kNothing && decay(kNothing, kNothing) == 0 && decay(kNothing, 3) == 0,
         "nothing's weight");
}

void check_scoring(Random& random) {
  std::uniform_real_distribution<float> dots(-3000, 3000);
  for (int i = 0; i < 10000; ++i) {
    const float dot = i == 0 ? 0 : dots(random) * (i % 2 == 0 ? 0.001F : 1.0F);
    const float scale = 0.0884F;
    const float cap = static_cast<float>(1 + pick(random, 60));
    expect(near(Scoring::of(scale, 0)(dot) * kLn2, double{dot} * double{scale}, 1e-6), "a score");
    const double capped = double{cap} * std::tanh(double{dot} * double{scale} / double{cap});
    expect(near(Scoring::of(scale, cap)(dot) * kLn2, capped, 1e-5), "a capped score");
  }
}

template <typename Tile>
void check_tile() {
  std::set<int> places;
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const int at = Tile::at(row, chunk);
      expect(at % 16 == 0 && at / Tile::kRowBytes == row && places.insert(at).second,
             "two chunks in one place");
    }
  }
  // A matrix load takes a chunk column of eight rows: eight different groups of four banks.
  for (int row = 0; row < Tile::kRows; row += 8) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(Tile::at(row + i, chunk) / 16 % 8);
      expect(banks.size() == 8, "bank conflicts");
    }
  }
  // The copies of all lanes fill the tile once, each with the slot of its row, in runs of neighbouring lanes.
  std::set<int> filled;
  for (int lane = 0; lane < 32; ++lane) {
    const int first = Tile::at(Tile::first_row(lane), Tile::first_chunk(lane));
    for (int i = 0; i < Tile::kCopies; ++i) {
      const int row = Tile::first_row(lane) + i / Tile::kTurns;
      const int chunk = Tile::first_chunk(lane) + i % Tile::kTurns * Tile::kLanes;
      expect(Tile::copy(first, i) == Tile::at(row, chunk), "a copy goes elsewhere");
      expect(filled.insert(Tile::at(row, chunk)).second, "a chunk copied twice");
      const int holder = lane / Tile::kLanes * Tile::kLanes + i / Tile::kTurns;
      expect(Tile::token_of(holder) == row, "a copy is given another row's slot");
    }
  }
  expect(static_cast<int>(filled.size()) == Tile::kRows * Tile::kChunks, "chunks that nobody copies");
  std::set<int> stored;
  for (int lane = 0; lane < 32; ++lane) {
    const int token = Tile::token_of(lane);
    expect(token >= Tile::kRows || stored.insert(token).second, "a token's slot held twice");
  }
  // As the matrix loads walk through a tile: from chunk 0 or 1 of any row by even steps.
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      expect(Tile::right(Tile::at(row, chunk % 2), chunk / 2 * 2) == Tile::at(row, chunk),
             "a step to the right");
    }
  }
}

}  // namespace

int main() {
  Random random(20240607);
  check_windows();
  check_sharing(random);
  check_softmax(random);
  check_scoring(random);
  check_tile<Tile<16, 128>>();
  check_tile<Tile<16, 256>>();
  check_tile<Tile<16, 512>>();
  check_tile<Tile<8, 256>>();
  check_tile<Tile<8, 512>>();
  check_tile<Tile<8, 1024>>();
  std::puts("cuda_split_stress: the arithmetic of the CUDA kernels holds");
}
