import duralite from './index.js';

export const { enable, lastError, libraryVersion, loadablePath, run } = duralite;
