#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client/src/leased_image.h"
#include "client/src/view.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// A kvtier_view with copies of the caller's arrays.
class OwnedView {
 public:
  /// Errors: those of View::CheckDestination.
  static Result<std::unique_ptr<OwnedView>> Make(const kvtier_view* view, const ModelSpec& spec,
                                                 LayerRange layers, uint64_t tokens);
  const View& get() const { return *view_; }

 private:
  OwnedView() = default;
  std::vector<void*> bases_, v_bases_;
  std::vector<int32_t> pages_;
  std::optional<View> view_;
};

/// A fetch that is done piece by piece, a piece being one layer of one block: the first layer of all blocks,
/// then the second, so that an engine computes with the first ones while later ones are decoded. Threads: any
/// number take pieces, any number wait.
class LayerFetch {
 public:
  /// Opens the blocks; those that cannot be are failures of their own. Errors: those of OwnedView::Make.
  static Result<std::shared_ptr<LayerFetch>> Make(std::shared_ptr<Lease> lease, size_t first, size_t count,
                                                  LayerRange layers, const kvtier_view* destination);

  /// Takes the next piece and does it. False when there is none left to take.
  bool DoPiece();
  /// Takes no more pieces and waits for those under way, a layer each; then nothing writes to the destination
  /// any more. Blocks whose layers were not all done are kCancelled.
  void Cancel();
  /// Runs once when the last piece has ended, maybe at once; it must neither block nor call this object.
  void OnEnd(std::function<void()> ended);

  /// Until the layers up to `layer` (of the model) are done; takes pieces of them meanwhile. False at the
  /// deadline.
  bool WaitLayer(uint16_t layer, TimePoint deadline);
  /// Of each block, as far as `layer`; done layers only. Results have room for all blocks.
  void Results(uint16_t layer, std::span<kvtier_block_result> results) const;

  LayerRange layers() const { return layers_; }
  uint16_t last_layer() const { return static_cast<uint16_t>(layers_.first + layers_.count - 1); }
  size_t blocks() const { return blocks_.size(); }

 private:
  struct Block {
    LeasedImage opened;
    size_t index = 0;  ///< in the lease
    uint32_t first_token = 0;
    kvtier_precision precision = KVTIER_PRECISION_ANY;
    Code failure = Code::kOk;
    uint16_t failed_layer = 0;  ///< the first that failed
  };
  LayerFetch(std::shared_ptr<Lease> lease, LayerRange layers, std::unique_ptr<OwnedView> destination,
             Stores stores)
      : lease_(std::move(lease)), layers_(layers), destination_(std::move(destination)), stores_(stores) {}
  /// Of the layers up to `last`.
  bool DoPieceUpTo(uint16_t last);
  Status Decode(const Block& block, uint16_t layer) const;
  void Finish(Block& block, uint16_t layer, const Status& status);
  void Advance();
  bool ended() const { return layers_done_ == layers_.count || (cancelled_ && under_way_ == 0); }

  const std::shared_ptr<Lease> lease_;
  const LayerRange layers_;
  const std::unique_ptr<OwnedView> destination_;
  const Stores stores_;
  std::vector<Block> blocks_;  ///< what is opened does not change; failures under the mutex

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;            ///< piece: layer * blocks + block
  std::vector<size_t> to_do_;  ///< pieces of each layer that are not done
  uint16_t layers_done_ = 0;   ///< from the first on
  static constexpr uint32_t kNoneWanted = UINT32_MAX;
  uint32_t least_wanted_ = kNoneWanted;  ///< layers done that somebody waits for
  uint32_t under_way_ = 0;
  bool cancelled_ = false;
  std::function<void()> on_end_;
};

}  // namespace kvtier::client
