export type Told = {
    message: (channel: string, text: string) => void;
    ready: () => void;
};
export type Subscriber = {
    /**
     * settles with the confirmation
     */
    subscribe: (channel: string) => Promise<unknown>;
    unsubscribe: (channel: string) => Promise<unknown>;
    /**
     * whether its library subscribes anew after a lost connection
     */
    resubscribes: boolean;
    close: () => void;
};
export type Driver = {
    /**
     * of the cell
     */
    name: string;
    database: number;
    closed: () => boolean;
    command: (args: string[]) => Promise<any>;
    transaction: (commands: string[][]) => Promise<any[]>;
    subscriber: (told: Told) => Subscriber;
};
export declare class Connection {
    #private;
    driver: Driver;
    patience: number;
    /** @param {any} client of node-redis or ioredis @param {number} patience seconds */
    constructor(client: any, patience: number);
    /** The reply to a command that may be repeated. @param {string[]} args @param {AbortSignal} [signal] @returns {Promise<any>} */
    command(args: string[], signal?: AbortSignal): Promise<any>;
    /** The replies to commands that only read, all of one moment. @param {string[][]} commands @param {AbortSignal} [signal] @returns {Promise<any[]>} */
    transaction(commands: string[][], signal?: AbortSignal): Promise<any[]>;
}
