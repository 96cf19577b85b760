// Original file: proto/agent.proto


export interface InventoryChanged {
  /**
   * JSON of contracts Inventory.
   */
  'inventory'?: (Buffer | Uint8Array | string);
}

export interface InventoryChanged__Output {
  /**
   * JSON of contracts Inventory.
   */
  'inventory': (Buffer);
}
