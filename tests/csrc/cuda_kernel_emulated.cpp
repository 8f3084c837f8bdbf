// Runs the CUDA kernels, thread for thread, on the host (cuda_emulation.hpp) and compares them with attention
// in fp64: head counts and dimensions, types, windows, soft cap, ragged and empty requests, few and many
// workers. What only a GPU can show, it does not. Exits with 1 on a mismatch.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "attention/cuda/attend.cuh"
#include "attention/cuda/finish.cuh"
#include "attention/cuda/latent_mma.cuh"
#include "attention/cuda/latent_simt.cuh"
#include "attention/cuda/plan.cuh"
#include "attention/cuda/rows.cuh"
#include "attention/cuda/separate_warps.cuh"
#include "attention/cuda/warp_mma.cuh"
#include "attention/cuda/warp_simt.cuh"

namespace {

using namespace lamina::attention::cuda;
using Random = std::mt19937_64;
using Copies = emulated::Copies;

struct Case {
  int kv_heads, group, head_dim, workers, window;
  float soft_cap;
  std::vector<int> lengths;
  Which which = Which::kPrevious;
  bool sinks = false;
  int chunk = 0;
  int latent = 0;

  int value_dim() const { return latent != 0 ? latent : head_dim; }
};

template <typename Element>
double tolerance() {
  if (std::is_same_v<Element, F32>) return 3e-5;
  return std::is_same_v<Element, F16> ? 2e-3
                                      : 1.2e-2;  // weights are rounded to the type for the second product
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
  std::fprintf(stderr,
               "cuda_kernel_emulated: %d x %d heads of %d (latent %d), %d workers, window %d, cap %g, %zu "
               "requests: %s\n",
               c.kv_heads, c.group, c.head_dim, c.latent, c.workers, c.window, c.soft_cap, c.lengths.size(),
               what.c_str());
  std::exit(1);
}

template <typename Element>
struct Data {
  using Storage = typename Element::Storage;

  Data(const Case& c, Random& random)
      : heads(c.kv_heads * c.group), slot_elements(c.kv_heads * c.head_dim + 16) {
    lists.push_back(0);
    for (const int length : c.lengths) lists.push_back(lists.back() + length);
    slots.resize(static_cast<std::size_t>(lists.back()));
    capacity = lists.back() + 5;
    std::vector<std::int32_t> all(static_cast<std::size_t>(capacity));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    std::copy_n(all.begin(), slots.size(), slots.begin());
    const auto rows = static_cast<std::size_t>(c.lengths.size());
    const auto arena = static_cast<std::size_t>(capacity) * static_cast<std::size_t>(slot_elements);
    // What no list names is NaN, as is what lies between heads and slots: nobody may read it.
    const Storage nan = Element::store(std::nanf(""));
    k.assign(arena, nan);
    v.assign(arena, nan);
    std::normal_distribution<float> normal;
    const auto draw = [&] { return Element::store(normal(random)); };
    for (const std::int32_t slot : slots) {
      for (int i = 0; i < c.kv_heads * c.head_dim; ++i) {
        k[static_cast<std::size_t>(slot * slot_elements + i)] = draw();
        if (c.latent == 0) v[static_cast<std::size_t>(slot * slot_elements + i)] = draw();
      }
    }
    q.resize(rows * static_cast<std::size_t>(heads * c.head_dim));
    new_k.resize(rows * static_cast<std::size_t>(c.kv_heads * c.head_dim));
    new_v.resize(new_k.size());
    for (auto* const some : {&q, &new_k, &new_v}) {
      for (Storage& one : *some) one = draw();
    }
    for (int head = 0; c.sinks && head < heads; ++head) sinks.push_back(5 * normal(random));
  }

  int heads, slot_elements;
  std::int32_t capacity;
  std::vector<std::int32_t> lists, slots;
  std::vector<Storage> q, k, v, new_k, new_v;
  std::vector<float> sinks;
};

// Attention of one head over these tokens as the textbook has it; for all of them the newest one's K and V
// are taken from the arena, where they must be by then.
template <typename Element>
std::vector<double> reference(const Case& c, const Data<Element>& data, int request, int head, Tokens tokens,
                              double* lse, const std::vector<float>& sinks = {}) {
  const auto dims = static_cast<std::size_t>(c.head_dim);
  const auto value_dims = static_cast<std::size_t>(c.value_dim());
  const auto* const q = &data.q[static_cast<std::size_t>((request * data.heads + head) * c.head_dim)];
  std::vector<double> scores;
  double sum = sinks.empty() ? 0 : std::exp(double{sinks[static_cast<std::size_t>(head)]});
  std::vector<double> out(value_dims, 0);
  const auto row = [&](const auto& arena, std::int32_t at) {
    const std::int32_t slot = data.slots[static_cast<std::size_t>(at)];
    return &arena[static_cast<std::size_t>(slot * data.slot_elements + head / c.group * c.head_dim)];
  };
  for (std::int32_t at = tokens.begin; at < tokens.end; ++at) {
    const auto* const k = row(data.k, at);
    double dot = 0;
    for (std::size_t i = 0; i < dims; ++i) dot += double{Element::load(q[i])} * double{Element::load(k[i])};
    double score = dot / std::sqrt(c.head_dim);
    if (c.soft_cap > 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
    const double weight = std::exp(score);
    const auto* const v = row(c.latent != 0 ? data.k : data.v, at);
    for (std::size_t i = 0; i < value_dims; ++i) out[i] += weight * double{Element::load(v[i])};
    sum += weight;
  }
  for (double& one : out) one = sum > 0 ? one / sum : 0;
  *lse = std::log(sum);
  return out;
}

void expect_near(const Case& c, double match, double wanted, double tolerance, const std::string& what) {
  const bool same = std::isinf(wanted) ? match == wanted : std::abs(match - wanted) <= tolerance;
  if (!same) fail(c, what + " is " + std::to_string(match) + " instead of " + std::to_string(wanted));
}

template <typename Element, typename Reader>
void check_reader(const Case& c, Random& random) {
  Data<Element> data(c, random);
  const auto requests = static_cast<std::int32_t>(c.lengths.size());
  const int passes = (c.group + Reader::kHeads - 1) / Reader::kHeads;
  const Workspace::Size size{requests, c.kv_heads, c.workers, passes, Reader::kHeads, c.value_dim()};
  std::vector<char> memory(Workspace::at(nullptr, size).bytes + 256, 0x7f);
  void* aligned = memory.data();
  std::size_t room = memory.size();
  std::align(256, Workspace::at(nullptr, size).bytes, aligned, room);
  const Workspace work = Workspace::at(aligned, size);
  using Kernel = Attend<Reader>;

  PlanArgs plan{};
  plan.lists = data.lists.data();
  plan.requests = requests;
  plan.kv_heads = c.kv_heads;
  plan.window = c.window;
  plan.chunk = c.chunk;
  plan.which = c.which;
  plan.tile = Kernel::kTokens;
  plan.workers = c.workers;
  plan.counters = std::int64_t{passes} * requests * c.kv_heads;
  plan.plan = work.plan;
  plan.first = work.first;
  plan.begin = work.begin;
  plan.end = work.end;
  plan.offset = work.offset;
  plan.arrivals = work.arrivals;
  emulated::launch(share_out, 1, 1, kPlanThreads, kPlanSharedBytes, plan);

  constexpr int kElement = sizeof(typename Element::Storage);
  const Scoring scoring = Scoring::of(1 / std::sqrt(static_cast<float>(c.head_dim)), c.soft_cap);
  const auto results = static_cast<std::size_t>(requests * data.heads * c.value_dim());
  std::vector<float> out(results, std::nanf(""));
  std::vector<float> lse(static_cast<std::size_t>(requests * data.heads), std::nanf(""));
  AttendArgs attend_args{};
  attend_args.q = data.q.data();
  attend_args.rows = {reinterpret_cast<const char*>(data.k.data()),
                      reinterpret_cast<const char*>(data.v.data()), data.slot_elements * kElement,
                      c.head_dim * kElement};
  attend_args.head_bytes = c.head_dim * kElement;
  attend_args.slots = data.slots.data();
  attend_args.heads = data.heads;
  attend_args.group = c.group;
  attend_args.head_dim = c.head_dim;
  attend_args.value_dim = c.value_dim();
  attend_args.scoring = scoring;
  attend_args.plan = work.plan;
  attend_args.first = work.first;
  attend_args.requests = {work.offset, work.begin, work.end, requests};
  attend_args.arrivals = work.arrivals;
  attend_args.part_lse = work.part_lse;
  attend_args.part_out = work.part_out;
  attend_args.parts = part_count(std::int64_t{requests} * c.kv_heads, c.workers);
  attend_args.out = out.data();
  attend_args.lse = lse.data();
  // Twice, as two layers would: the first leaves the counters as the second needs them.
  for (const Copies copies : {Copies::kAtOnce, Copies::kWhenAwaited}) {
    emulated::machine.copies = copies;
    std::fill(out.begin(), out.end(), std::nanf(""));
    emulated::launch(attend<Reader>, passes, c.workers, Kernel::kThreads, Kernel::kSharedBytes, attend_args);
  }

  const auto each_head = [&](const auto& visit) {
    for (int request = 0; request < requests; ++request) {
      const auto r = static_cast<std::size_t>(request);
      for (int head = 0; head < data.heads; ++head)
        visit(request, head, Tokens{data.lists[r], data.lists[r + 1]});
    }
  };
  const double near = tolerance<Element>();
  each_head([&](int request, int head, Tokens listed) {
    double wanted_lse;
    const auto row = static_cast<std::size_t>(request * data.heads + head);
    const auto wanted =
        reference(c, data, request, head, visible(listed, c.window, c.chunk, c.which), &wanted_lse);
    expect_near(c, lse[row], wanted_lse, 1e-4, "the log-sum-exp");
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      expect_near(c, out[row * wanted.size() + i], wanted[i], near, "the partial");
    }
  });
  if (c.which == Which::kAll) return;

  std::vector<typename Element::Storage> result(results);
  FinishArgs finish_args{};
  finish_args.q = data.q.data();
  finish_args.new_k = data.new_k.data();
  finish_args.new_v = c.latent == 0 ? data.new_v.data() : nullptr;
  finish_args.lists = data.lists.data();
  finish_args.slots = data.slots.data();
  finish_args.out = out.data();
  finish_args.lse = lse.data();
  finish_args.sinks = c.sinks ? data.sinks.data() : nullptr;
  finish_args.result = result.data();
  finish_args.k = reinterpret_cast<char*>(data.k.data());
  finish_args.v = reinterpret_cast<char*>(data.v.data());
  finish_args.slot_bytes = data.slot_elements * kElement;
  finish_args.head_bytes = c.head_dim * kElement;
  finish_args.heads = data.heads;
  finish_args.group = c.group;
  finish_args.head_dim = c.head_dim;
  finish_args.value_dim = c.value_dim();
  finish_args.scoring = scoring;
  const int slices = (c.group + kFinishHeads - 1) / kFinishHeads;
  emulated::launch(finish<Element>, requests, c.kv_heads * slices, kFinishThreads, 0, finish_args);
  each_head([&](int request, int head, Tokens listed) {
    double wanted_lse;
    const auto row = static_cast<std::size_t>(request * data.heads + head);
    // The reference finds the new rows in the arena only if they have been stored.
    const auto wanted = reference(c, data, request, head, visible(listed, c.window, c.chunk, Which::kAll),
                                  &wanted_lse, data.sinks);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      expect_near(c, Element::load(result[row * wanted.size() + i]), wanted[i], near * 2, "the result");
    }
  });
}

template <typename Element, typename Warp>
void check(const Case& c, Random& random) {
  check_reader<Element, SeparateWarps<Warp>>(c, random);
}

template <typename Math, typename Element>
void check_latent(Case c, int latent, Random& random) {
  c.latent = latent;
  check_reader<Element, Latent<Math>>(c, random);
}

void check_combine(Random& random) {
  constexpr int kRows = 7;
  constexpr int kDim = 80;
  std::normal_distribution<float> normal;
  std::vector<float> first(kRows * kDim), second(kRows * kDim), first_lse(kRows), second_lse(kRows);
  for (auto* const some : {&first, &second, &first_lse, &second_lse}) {
    for (float& one : *some) one = 3 * normal(random);
  }
  first_lse[0] = second_lse[0] = first_lse[1] = second_lse[2] = kNothing;
  std::vector<float> out = first;
  std::vector<float> lse = first_lse;
  emulated::launch(combine, 2, 1, kCombineThreads, 0,
                   CombineArgs{out.data(), lse.data(), second.data(), second_lse.data(), out.data(),
                               lse.data(), kRows, kDim});
  for (std::size_t row = 0; row < kRows; ++row) {
    const double a = std::exp(double{first_lse[row]});
    const double b = std::exp(double{second_lse[row]});
    for (std::size_t i = row * kDim; i < (row + 1) * kDim; ++i) {
      const double wanted = a + b > 0 ? (a * first[i] + b * second[i]) / (a + b) : 0;
      expect_near({}, out[i], wanted, 1e-5, "what combine() makes");
    }
    expect_near({}, lse[row], std::log(a + b), 1e-5, "combine()'s log-sum-exp");
  }
}

void check_append(Random& random) {
  constexpr int kTokens = 9, kHeads = 3, kRow = 96, kSlots = 20, kSlotBytes = kHeads * kRow + 32;
  std::vector<std::int32_t> slots(kSlots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  slots[4] = -1;
  std::vector<Chunk> new_k(kTokens * kHeads * kRow / 16), new_v(new_k.size());
  std::vector<Chunk> k(kSlots * kSlotBytes / 16), v(k.size());
  std::uint32_t next = 1;
  for (auto* const some : {&new_k, &new_v}) {
    for (Chunk& chunk : *some) chunk.words[0] = next++;
  }
  AppendArgs args{};
  args.new_k = new_k.data();
  args.new_v = new_v.data();
  args.slots = slots.data();
  args.k = reinterpret_cast<char*>(k.data());
  args.v = reinterpret_cast<char*>(v.data());
  args.slot_bytes = kSlotBytes;
  args.head_bytes = kRow;
  args.tokens = kTokens;
  args.kv_heads = kHeads;
  args.row_bytes = kRow;
  emulated::launch(append, 2, 1, kAppendThreads, 0, args);
  std::vector<Chunk> wanted_k(k.size()), wanted_v(k.size());
  constexpr std::size_t kChunks = kHeads * kRow / 16;
  for (std::size_t token = 0; token < kTokens; ++token) {
    if (slots[token] < 0) continue;
    const auto at = static_cast<std::size_t>(slots[token]) * kSlotBytes / 16;
    for (std::size_t i = 0; i < kChunks; ++i) {
      wanted_k[at + i] = new_k[token * kChunks + i];
      wanted_v[at + i] = new_v[token * kChunks + i];
    }
  }
  const std::size_t bytes = k.size() * sizeof(Chunk);
  if (std::memcmp(k.data(), wanted_k.data(), bytes) != 0 ||
      std::memcmp(v.data(), wanted_v.data(), bytes) != 0) {
    fail({}, "append() stores something else");
  }
}

void check_latent_kv(Random& random) {
  using Few = LatentMma<Bf16, 16>;
  using Many = LatentMma<Bf16, 64>;
  // kv_heads, group, head_dim, workers, window, soft_cap, lengths; latent
  check_latent<Many, Bf16>({1, 128, 576, 2, 0, 0, {65, 33, 0}}, 512, random);           // DeepSeek-V3
  check_latent<Few, Bf16>({1, 16, 576, 3, 0, 0, {130, 1, 64, 0, 2, 33}}, 512, random);  // V2-Lite
  check_latent<LatentMma<F16, 64>, F16>({1, 40, 288, 1, 50, 30, {96, 40}}, 256, random);
  check_latent<LatentMma<F16, 16>, F16>({2, 3, 48, 5, 0, 0, {129, 40, 0}, Which::kAll}, 32, random);
  check_latent<LatentSimt, F32>({1, 16, 576, 3, 0, 0, {100, 0, 31, 17}}, 512, random);
  check_latent<LatentSimt, F32>({2, 20, 80, 4, 50, 20, {100, 40}, Which::kPrevious, true}, 80, random);
  check_latent<LatentSimt, F32>({1, 5, 16, 1, 0, 0, {97, 200}, Which::kAll, false, 96}, 16, random);
  // Lists, heads and sizes at random, in few and many shares.
  const auto between = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int i = 0; i < 4; ++i) {
    const int latent = between(1, 12) * 16;
    Case c{
        between(1, 2), between(1, 40), latent + between(0, 3) * 16, between(1, 9), between(0, 1) * 50, 0, {}};
    c.sinks = between(0, 1) == 1;
    for (int requests = between(1, 4); requests > 0; --requests) c.lengths.push_back(between(0, 80));
    i % 2 == 0 ? check_latent<Few, Bf16>(c, latent, random) : check_latent<Many, Bf16>(c, latent, random);
    check_latent<LatentSimt, F32>(c, latent, random);
  }
}

}  // namespace

int main() {
  Random random(20240601);
  // kv_heads, group, head_dim, workers, window, soft_cap, lengths
  const Case llama{2, 8, 128, 3, 0, 0, {200, 1, 64, 0, 2, 65}};
  check<Bf16, WarpMma<Bf16, 128, 8>>(llama, random);
  check<F16, WarpMma<F16, 128, 8>>({1, 4, 128, 1, 70, 30, {130, 70, 69, 71}}, random);
  check<Bf16, WarpMma<Bf16, 128, 8>>({2, 1, 80, 5, 0, 0, {129, 40, 300}, Which::kAll}, random);
  check<F16, WarpMma<F16, 64, 8>>({3, 3, 64, 7, 0, 5, {0, 0, 260, 33, 0}}, random);
  check<Bf16, WarpMma<Bf16, 64, 16>>({1, 12, 64, 4, 100, 0, {300, 17}}, random);
  check<Bf16, WarpMma<Bf16, 128, 16>>({1, 20, 96, 3, 0, 0, {150, 210}}, random);
  check<F16, WarpMma<F16, 256, 8>>({2, 2, 192, 3, 0, 0, {90, 60}}, random);
  check<Bf16, WarpMma<Bf16, 256, 16>>({1, 16, 256, 2, 1, 0, {80, 5}}, random);
  check<Bf16, WarpMma<Bf16, 256, 16>>({1, 16, 256, 2, 0, 0, {150, 5}}, random);
  check<F32, WarpSimt<64, 8>>({2, 2, 64, 5, 0, 0, {100, 0, 31, 33}}, random);
  check<F32, WarpSimt<128, 8>>({1, 9, 112, 3, 50, 20, {100, 40}}, random);
  check<F32, WarpSimt<64, 8>>({2, 4, 16, 3, 0, 0, {40, 90}}, random);
  check<Bf16, WarpMma<Bf16, 64, 8>>({2, 2, 16, 6, 9, 0, {40, 9, 8, 500}}, random);
  check<F32, WarpSimt<256, 8>>({1, 1, 160, 2, 0, 0, {75, 20}}, random);
  check<Bf16, WarpMma<Bf16, 64, 8>>({2, 8, 64, 4, 100, 0, {300, 17, 1, 0}, Which::kPrevious, true}, random);
  check<F32, WarpSimt<64, 8>>({2, 2, 64, 5, 0, 0, {100, 1, 31, 33}, Which::kPrevious, true}, random);
  check<Bf16, WarpMma<Bf16, 64, 8>>({2, 5, 64, 4, 0, 0, {300, 96, 97, 1, 0}, Which::kPrevious, false, 96},
                                    random);
  check<F32, WarpSimt<64, 8>>({1, 2, 64, 3, 0, 0, {96, 97, 200, 0}, Which::kAll, false, 96}, random);
  check_latent_kv(random);
  check_combine(random);
  check_append(random);
  std::puts("cuda_kernel_emulated: the kernels calculate what they should");
}
