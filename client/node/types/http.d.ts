export type ClientOptions = {
    /**
     * an API key or a token, or what gives a fresh one
     */
    key?: string | (() => string | Promise<string>);
    /**
     * for how many seconds a call is repeated while the gateway cannot be reached; 30
     */
    patience?: number;
    /**
     * in place of the global one
     */
    fetch?: typeof globalThis.fetch;
    /**
     * further headers of each request
     */
    headers?: Record<string, string>;
};
export type Asked = {
    /**
     * what is undefined is left out
     */
    query?: Record<string, unknown>;
    body?: unknown;
    headers?: Record<string, string>;
    signal?: AbortSignal;
    /**
     * do not repeat it: a second request would do it twice
     */
    once?: boolean;
    /**
     * is called before each try
     */
    sending?: () => void;
    /**
     * how many seconds the gateway itself may wait
     */
    wait?: number;
};
export declare class Http {
    #private;
    url: string;
    patience: number;
    key: string | (() => string | Promise<string>) | undefined;
    headers: Record<string, string>;
    fetch: typeof fetch;
    /** @param {string | URL} url @param {ClientOptions} options */
    constructor(url: string | URL, { key, patience, fetch, headers }?: ClientOptions);
    /**
     * The JSON of the answer; undefined where there is none.
     *
     * @param {string} method
     * @param {string} path
     * @param {Asked} [asked]
     * @returns {Promise<any>}
     */
    json(method: string, path: string, asked?: Asked): Promise<any>;
    /**
     * A body that streams events, until `close` or the signal ends it.
     *
     * @param {string} path
     * @param {Asked} asked
     * @returns {Promise<{ body: ReadableStream<Uint8Array>, close: () => void }>}
     */
    stream(path: string, asked: Asked): Promise<{
        body: ReadableStream<Uint8Array>;
        close: () => void;
    }>;
}
/** A path of percent-encoded segments. @param {...string} segments */
export declare function path(...segments: string[]): string;
