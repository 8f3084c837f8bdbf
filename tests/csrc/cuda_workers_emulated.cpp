// The whole device path of a model worker and an attention worker: two devices, each with a stream that is a
// thread of the host. Queries, and then keys and values, of each layer are sent by the one's kernels and
// received by the other's, attended to over a KV arena, and what comes out is sent back; launched each time,
// or captured once and replayed, over rings in shared memory and over softnics. It is bit for bit what the
// same kernels make without channels. Exits with 1 on a mismatch.

#include <cstdio>
#include <thread>

#include "cuda_paths.hpp"
#include "cuda_workers.hpp"

namespace {

using namespace cuda_workers_test;
using namespace cuda_paths_test;
using Outputs = std::vector<std::vector<float>>;

constexpr int kIterations = 3;
constexpr std::uint64_t kSeed = 5;

void copy(const Array<float>& from, const Array<float>& to) {
  std::copy_n(from.data(), from.values().size(), to.data());
}

// One stream, no channel.
Outputs made_alone() {
  Outputs made;
  Random random(kSeed);
  const Model model;
  Attention attention;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    model.draw(random);
    attention.advance();
    attention.plan(nullptr);
    for (int layer = 0; layer < kLayers; ++layer) {
      copy(model.x[layer], attention.q);
      attention.begin(layer, nullptr);
      copy(model.k[layer], attention.k);
      copy(model.v[layer], attention.v);
      attention.finish(layer, nullptr);
      attention.expect_textbook(layer);
      copy(attention.out, model.x[layer + 1]);
      made.push_back(attention.out.values());
    }
  }
  return made;
}

// Before each iteration the host prepares it; none of its threads has a part in the rest.
void iterate(bool replays, const Ends& ends, const std::function<void(cudaStream_t)>& put,
             const std::function<void()>& before, const std::function<void()>& after) {
  const Stream stream;
  std::optional<Captured> graph;
  if (replays) graph.emplace(stream, [&] { put(stream); });
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    before();
    replays ? graph->replay() : put(stream);
    expect_ok(ends.check());
    after();
  }
}

void check_iterations(const Outputs& wanted, bool over_nics, bool replays) {
  Path path(over_nics);
  std::thread attends = on_device(kAttends, [&] {
    Attention attention;
    const Ends ends = path.of_attention();
    iterate(
        replays, ends, [&](cudaStream_t stream) { put_attention(attention, ends, stream); },
        [&] { attention.advance(); }, [] {});
  });
  Outputs made;
  std::thread model = on_device(kModel, [&] {
    Random random(kSeed);
    const Model model;
    const Ends ends = path.of_model();
    iterate(
        replays, ends, [&](cudaStream_t stream) { put_model(model, ends, stream); },
        [&] { model.draw(random); },
        [&] {
          for (int layer = 0; layer < kLayers; ++layer) made.push_back(model.x[layer + 1].values());
        });
  });
  model.join();
  attends.join();
  expect(made == wanted, "the workers make something else than the same kernels without channels");
}

}  // namespace

int main() {
  const Outputs wanted = made_alone();
  for (const bool over_nics : {false, true}) {
    for (const bool replays : {false, true}) check_iterations(wanted, over_nics, replays);
  }
  expect(fake_cuda::registered.empty(), "memory stays pinned");
  std::puts("cuda_workers_emulated: two workers make what one makes alone");
}
